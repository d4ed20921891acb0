# SPDX-License-Identifier: Apache-2.0
"""Operations that torch.profiler sees in a window of steps."""
