# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu run`: somebody else's program, recorded."""
