# SPDX-License-Identifier: Apache-2.0
"""The report of a run as data: one document, of which the terminal, the page and JSON are views.

Each section is a file: its dataclasses, and the function that makes it from a run. A section is
None where nothing of the kind was recorded. What is not known is None, never 0. Names say the unit
of their values: `_ns` nanoseconds, `_bytes` bytes; shares are of 1.
"""
