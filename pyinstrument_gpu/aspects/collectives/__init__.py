# SPDX-License-Identifier: Apache-2.0
"""Collective operations, by PyTorch's flight recorder."""
