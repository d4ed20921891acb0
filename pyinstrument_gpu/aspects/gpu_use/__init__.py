# SPDX-License-Identifier: Apache-2.0
"""Use of a GPU: how busy its units were, how fast its clock went, and why not faster."""

NAME = "gpu_use"
