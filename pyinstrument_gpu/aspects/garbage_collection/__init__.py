# SPDX-License-Identifier: Apache-2.0
"""Time that Python's garbage collector takes."""

DOCUMENT = "collector"
"""The name of its document in the run file."""
KIND = 1
"""In the log of causes, where a note is the generation."""
