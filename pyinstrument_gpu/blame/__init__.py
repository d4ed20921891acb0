# SPDX-License-Identifier: Apache-2.0
"""The search for the commit that made training slower, by runs of the commits in question."""
