# SPDX-License-Identifier: Apache-2.0
"""The edits that are tried. `edit.py` has their interface, and `table.py` the only list."""
