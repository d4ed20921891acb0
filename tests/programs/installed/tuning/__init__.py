# SPDX-License-Identifier: Apache-2.0
"""An installed package whose modules are run by their names, in the style of TRL."""
