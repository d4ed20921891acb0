# SPDX-License-Identifier: Apache-2.0
"""What Python's garbage collector takes."""
