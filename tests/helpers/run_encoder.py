# SPDX-License-Identifier: Apache-2.0
"""A run as a run file, so that tests can read runs that they made by hand."""

from pyinstrument_gpu.format.writer import encode, save

__all__ = ["encode", "save"]
