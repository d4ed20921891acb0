# SPDX-License-Identifier: Apache-2.0
"""Tries edits of a training program, each in runs of its own, and says which make it faster."""
