# SPDX-License-Identifier: Apache-2.0
"""Floating-point operations of a profiled step, and how many the device could do."""
