# SPDX-License-Identifier: Apache-2.0
"""The ranks of one job together: who is waited for, how the job ended, and what is said of it.

`gather` makes a `Job` of runs or their files, `analysis` and `ending` conclude, and `report` and
`ending_report` say it, as a document and as text.
"""
