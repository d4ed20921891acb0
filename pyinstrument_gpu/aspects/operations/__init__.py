# SPDX-License-Identifier: Apache-2.0
"""The operations that torch.profiler sees in some steps."""
