# SPDX-License-Identifier: Apache-2.0
"""What a run is: steps, spans, statistics and waits, and the file that holds them.

It knows no aspect.
"""
