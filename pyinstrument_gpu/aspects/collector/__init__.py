# SPDX-License-Identifier: Apache-2.0
"""What Python's garbage collector takes."""

NAME = "collector"
"""Of the document in the run file, of the attribute of a `Run`, and of the section."""
KIND = 1
"""In the log of causes, where a note is the generation."""
