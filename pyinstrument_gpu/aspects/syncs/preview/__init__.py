# SPDX-License-Identifier: Apache-2.0
"""The preview: where a program that runs on a CPU would wait if it ran on a GPU."""
