# SPDX-License-Identifier: Apache-2.0
"""The collective operations of a job, as PyTorch's flight recorder has them."""
