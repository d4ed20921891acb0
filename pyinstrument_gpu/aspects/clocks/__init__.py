# SPDX-License-Identifier: Apache-2.0
"""How fast a GPU's clock went, and why not faster."""

NAME = "clocks"
"""Of the document in the run file, and of the attribute of a `Run`."""
