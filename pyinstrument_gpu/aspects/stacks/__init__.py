# SPDX-License-Identifier: Apache-2.0
"""Lines of Python in which the main thread was, by phase, from samples of its stack."""

NAME = "stacks"
"""Of the document in the run file, and of the attribute of a `Run`."""
MOST_TEXT = 300
