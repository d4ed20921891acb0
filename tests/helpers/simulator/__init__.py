# SPDX-License-Identifier: Apache-2.0
"""A simulator of training programs: what a program's run would hold, and what a change to the
program really saves.

It is written from how CUDA, NCCL and torch's DataLoader work, and knows nothing of the analysis,
which it judges.
"""
