# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and logs that a program writes while it trains."""

DOCUMENT = "outputs"
"""The name of its document in the run file."""
CHECKPOINT_KIND, LOGGING_KIND = 8, 9
"""In the log of causes, where a note is the number of the place."""
MOST_PLACES = 64
MOST_TEXT = 300
