# SPDX-License-Identifier: Apache-2.0
"""What follows from a run: pure functions of it, which measure nothing themselves."""
