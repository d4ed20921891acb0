# SPDX-License-Identifier: Apache-2.0
"""Processor time that a program wanted and did not get."""
