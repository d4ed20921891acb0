# SPDX-License-Identifier: Apache-2.0
"""Things that hold the thread of a step up: page faults, a shortage of memory, and the GIL."""

DOCUMENT = "hindrances"
"""The name of its document in the run file."""
FAULTS_KIND, DISK_KIND, PRESSURE_KIND, GIL_KIND, COMPUTING_KIND, STEAL_KIND = range(10, 16)
"""In the log of causes. A note of a wait for the GIL is the system's number of the thread that ran
meanwhile; 0 if none did."""
MOST_THREADS = 256
MOST_TEXT = 300
