# SPDX-License-Identifier: Apache-2.0
"""Numbers that stop being finite: which module made the first NaN."""

NAME = "nonfinite"
"""Of the document in the run file, and of the attribute of a `Run`."""

MOST_TEXT = 200
MOST_WAY = 6
"""Values on the way to the first one that was not finite."""
