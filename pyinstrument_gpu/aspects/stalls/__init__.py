# SPDX-License-Identifier: Apache-2.0
"""Times in which no step begins or ends for far longer than steps take."""
