# SPDX-License-Identifier: Apache-2.0
"""What a program writes while it trains: checkpoints and logs."""
