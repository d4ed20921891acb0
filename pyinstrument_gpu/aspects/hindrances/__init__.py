# SPDX-License-Identifier: Apache-2.0
"""What holds the thread of a step up: page faults, a shortage of memory, and the GIL."""
