# SPDX-License-Identifier: Apache-2.0
"""Things that are recorded beside phases and steps: one folder for each.

The folder has the data, how it is read from a run file, how it is learnt while recording, and what
a report says of it. `table` lists them, and core/aspect.py says what each may have.
"""
