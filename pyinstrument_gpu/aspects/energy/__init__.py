# SPDX-License-Identifier: Apache-2.0
"""What GPUs use, by their own counters."""
