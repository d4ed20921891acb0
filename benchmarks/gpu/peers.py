# SPDX-License-Identifier: Apache-2.0
"""Packages whose figures stand beside ours where they are installed."""

PEERS = ("nvidia-resiliency-ext", "nvtx", "torcheval", "torchmetrics", "traceml-ai")
