# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML file, which opens without a network.

What is said of the run comes from its document. The page adds what only a picture needs: the times
of single steps, the timeline of some of them, histograms, and the source lines of syncs.
"""
