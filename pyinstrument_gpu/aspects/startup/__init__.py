# SPDX-License-Identifier: Apache-2.0
"""Work of a program before its first step: imports, the model, the optimizer, workers."""

NAME = "startup"
"""Of the document in the run file, of the attribute of a `Run`, and of the section."""

IMPORT, MODEL, CHECKPOINT, DEVICE = "import", "model", "checkpoint", "device"
OPTIMIZER, GROUP, WORKERS, BATCH = "optimizer", "group", "workers", "batch"
PARTS = (IMPORT, MODEL, CHECKPOINT, DEVICE, OPTIMIZER, GROUP, WORKERS, BATCH)
"""What is timed while the program runs."""

MOST_INTERVALS = 256
MOST_TEXT = 300
