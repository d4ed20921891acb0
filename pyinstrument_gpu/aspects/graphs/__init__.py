# SPDX-License-Identifier: Apache-2.0
"""Phases inside captured CUDA graphs, replay by replay."""

NAME = "graph_phases"
"""Of the document in the run file, of the section, and of the attribute of a `Run`."""
