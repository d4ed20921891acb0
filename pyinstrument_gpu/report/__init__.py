# SPDX-License-Identifier: Apache-2.0
"""Reports: a run as people read it.

`overview` and `one_step` say what stands in a report, `table` gives it its form, and `terminal`
prints it. `facts` has the same numbers as plain values.
"""
