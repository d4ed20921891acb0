# SPDX-License-Identifier: Apache-2.0
"""Reports: a document as people read it.

`overview`, `one_step`, `job` and `job_ending` say what stands in a report, `table` gives it its
form, and `console` prints it.
"""
