# SPDX-License-Identifier: Apache-2.0
"""The things that are recorded besides phases and steps, one folder each."""
