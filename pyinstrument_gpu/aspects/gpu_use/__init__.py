# SPDX-License-Identifier: Apache-2.0
"""How a GPU was used: how busy its units were, how fast its clock went, and why not faster."""

NAME = "gpu_use"
