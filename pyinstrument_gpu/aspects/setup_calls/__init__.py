# SPDX-License-Identifier: Apache-2.0
"""The calls with which a program sets its training up: where an advised edit is to be made."""

DOCUMENT = "setup_calls"
"""The name of its document in the run file."""
MOST_CALLS = 64
MOST_TEXT = 300
