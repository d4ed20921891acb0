# SPDX-License-Identifier: Apache-2.0
"""The run file: its frames, its payloads, and reading them."""
