# SPDX-License-Identifier: Apache-2.0
"""What torch.compile takes: when it compiled what, why again, and where graphs break."""
