# SPDX-License-Identifier: Apache-2.0
"""Which code is the package's own, told by its file."""

from __future__ import annotations

import os

OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""Begins the name of every file of the package."""
