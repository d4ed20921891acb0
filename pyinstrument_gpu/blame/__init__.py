# SPDX-License-Identifier: Apache-2.0
"""Which commit made training slower, found by runs of the commits in question."""
