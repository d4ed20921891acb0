# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu run`: runs a program and records it."""
