# SPDX-License-Identifier: Apache-2.0
"""What the loop of a program does that may make a step slow."""
