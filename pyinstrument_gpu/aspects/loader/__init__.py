# SPDX-License-Identifier: Apache-2.0
"""The worker processes of DataLoaders: how long they make batches and wait for the loop, and which
of the dataset's functions that time goes to."""

NAME = "loader"
"""Of the document in the run file, of the attribute of a `Run`, and of the section."""
MOST_TEXT = 300
MOST_LOADERS = 16
MOST_WORKERS = 256
"""Of a loader, each with a row of its own."""
MOST_BATCHES = 1024
"""Of a loader, the newest ones."""
MOST_NODES = 1 << 14
MOST_LONG = 256
"""Of a loader, the newest of the batches that took much longer than usual."""
MOST_LINES = 16
"""In which such a batch spent most of its time."""
