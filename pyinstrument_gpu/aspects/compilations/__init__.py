# SPDX-License-Identifier: Apache-2.0
"""Compilations of torch.compile: when it compiled what, why again, and where graphs break."""

NAME = "compilations"
"""Of the document in the run file, of the attribute of a `Run`, and of the section."""

MOST_COMPILATIONS = 256
MOST_LINES = 64
"""Of the program at which graphs break, and of functions that reached a limit."""
MOST_TEXT = 300

DYNAMO = "dynamo"
"""The kind of a compilation that begins with the function; others go on where one left off, as the
one of its backward graph does."""
