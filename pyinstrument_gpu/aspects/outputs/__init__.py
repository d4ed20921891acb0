# SPDX-License-Identifier: Apache-2.0
"""What a program writes while it trains: checkpoints and logs."""

NAME = "outputs"
"""Of the document in the run file, and of the attribute of a `Run`."""
CHECKPOINT_KIND, LOGGING_KIND = 8, 9
"""In the log of causes, where a note is the number of the place."""
MOST_PLACES = 64
MOST_TEXT = 300
