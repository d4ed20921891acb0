# SPDX-License-Identifier: Apache-2.0
"""Recordings: from the first phase to the log."""
