# SPDX-License-Identifier: Apache-2.0
"""How many floating-point operations a profiled step does, and how many the device could do."""
