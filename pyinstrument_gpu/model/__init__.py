# SPDX-License-Identifier: Apache-2.0
"""A run as plain data. Knows nothing of files, reports or exports."""
