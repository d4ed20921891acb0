# SPDX-License-Identifier: Apache-2.0
"""A bounded window of steps under torch's profiler, told by phase and module."""
