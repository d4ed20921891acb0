# SPDX-License-Identifier: Apache-2.0
"""Memory by phase and over steps, and when there was none left."""
