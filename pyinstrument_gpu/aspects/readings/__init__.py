# SPDX-License-Identifier: Apache-2.0
"""The values that a program reads from its metrics."""
