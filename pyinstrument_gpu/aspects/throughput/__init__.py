# SPDX-License-Identifier: Apache-2.0
"""Tokens per second, and how much of its peak a device reaches."""
