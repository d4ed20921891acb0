# SPDX-License-Identifier: Apache-2.0
"""What a program wanted of the processors and did not get."""
