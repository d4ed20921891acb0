# SPDX-License-Identifier: Apache-2.0
"""Have mypy collect garbage before that has left the processor's cache.

For each `rows["name"]` of a structured array, mypy words why most overloads of numpy's don't fit,
in thousands of objects, and forgets the words. It collects garbage after 200,000 new objects, which
are in memory by then, and going over them took two thirds of the time of a check.
"""

import gc

from mypy.plugin import Plugin


def plugin(version: str) -> type[Plugin]:
    gc.set_threshold(5_000, 30, 1_000)
    return Plugin
