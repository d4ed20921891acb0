# SPDX-License-Identifier: Apache-2.0
"""What has changed over the runs of weeks, and since when."""
