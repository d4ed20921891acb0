# SPDX-License-Identifier: Apache-2.0
"""What sections are made of: sentences, tables, curves, and numbers in words."""
