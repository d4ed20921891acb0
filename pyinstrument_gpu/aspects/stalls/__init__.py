# SPDX-License-Identifier: Apache-2.0
"""Times in which the program does nothing for far longer than its steps take."""

QUIET = "quiet"
"""The document of where the program was."""
