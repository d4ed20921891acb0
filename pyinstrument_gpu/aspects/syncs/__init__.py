# SPDX-License-Identifier: Apache-2.0
"""The places where a program makes the host wait for a device."""
