# SPDX-License-Identifier: Apache-2.0
"""How fast a GPU's clock went, and why not faster."""
