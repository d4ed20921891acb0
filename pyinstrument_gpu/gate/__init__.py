# SPDX-License-Identifier: Apache-2.0
"""A gate for slow changes: records two sides in turn until it is known which is slower."""
