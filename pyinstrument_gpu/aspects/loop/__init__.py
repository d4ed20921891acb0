# SPDX-License-Identifier: Apache-2.0
"""Work of a program's loop that may make a step slow."""
