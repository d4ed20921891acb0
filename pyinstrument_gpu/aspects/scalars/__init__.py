# SPDX-License-Identifier: Apache-2.0
"""Numbers with a name that are read while a run goes on, such as those of metrics."""
