# SPDX-License-Identifier: Apache-2.0
"""The run file: its frames, its payloads, and reading them."""

MAGIC = b"\x89GPURUN\n"
"""What a run file begins with."""
