# SPDX-License-Identifier: Apache-2.0
"""The times in which a program stood still."""
