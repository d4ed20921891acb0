# SPDX-License-Identifier: Apache-2.0
"""Places where the program makes the host wait for a device. The waits are in core/syncs.py."""
