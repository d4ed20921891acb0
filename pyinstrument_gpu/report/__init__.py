# SPDX-License-Identifier: Apache-2.0
"""The report of a run: one document, of which the terminal, the page and JSON are views.

Each section is a file: its data, which are those of the JSON, the function that makes them from a
run, and its sentences and tables. `overview` lists the sections in their order. A section is None
where nothing of the kind was recorded. What is not known is None, never 0. Names say the unit of
their values: `_ns` nanoseconds, `_bytes` bytes; shares are of 1.
"""
