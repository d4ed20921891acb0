# SPDX-License-Identifier: Apache-2.0
"""Changes over the runs of weeks, and since when."""
