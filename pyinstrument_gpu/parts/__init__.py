# SPDX-License-Identifier: Apache-2.0
"""The neutral parts of reports, and words for numbers."""
