# SPDX-License-Identifier: Apache-2.0
"""What the ranks of one job show together."""
