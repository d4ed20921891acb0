# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu watch`: what a recording says while it goes on. It only reads its file."""
