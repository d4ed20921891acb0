# SPDX-License-Identifier: Apache-2.0
"""Replacing attributes of other people's modules and classes, and putting them back."""
