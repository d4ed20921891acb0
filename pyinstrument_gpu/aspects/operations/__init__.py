# SPDX-License-Identifier: Apache-2.0
"""What torch.profiler sees in a window of steps."""
