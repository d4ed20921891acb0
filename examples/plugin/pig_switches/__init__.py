# SPDX-License-Identifier: Apache-2.0
"""A plug-in of pyinstrument_gpu: an aspect, context switches, and a format of `export`."""
