# SPDX-License-Identifier: Apache-2.0
"""The energy that GPUs used."""
