# SPDX-License-Identifier: Apache-2.0
"""Reports: a run as people read it.

`step_times` has the numbers, `layout` their form, `overview` and `one_step` say what stands in a
report, and `terminal` prints it.
"""
