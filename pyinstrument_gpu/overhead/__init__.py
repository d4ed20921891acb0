# SPDX-License-Identifier: Apache-2.0
"""What a phase costs on this machine, beside other ways to mark a stretch of code."""
