# SPDX-License-Identifier: Apache-2.0
"""Parts of sections: sentences, tables, curves, and numbers in words."""
