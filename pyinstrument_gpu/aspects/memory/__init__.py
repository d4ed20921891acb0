# SPDX-License-Identifier: Apache-2.0
"""The memory of devices, by phase and over steps."""
