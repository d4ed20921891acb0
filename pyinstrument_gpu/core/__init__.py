# SPDX-License-Identifier: Apache-2.0
"""The model of a run: steps, spans, statistics and waits, and the file that holds them.

It knows no aspect.
"""
