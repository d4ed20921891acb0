# SPDX-License-Identifier: Apache-2.0
"""Energy that GPUs use, by their own counters."""
