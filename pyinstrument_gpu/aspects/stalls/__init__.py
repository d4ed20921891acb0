# SPDX-License-Identifier: Apache-2.0
"""Times in which the program does nothing for far longer than its steps take."""
