# SPDX-License-Identifier: Apache-2.0
"""The times of the model's modules, forward and backward."""
