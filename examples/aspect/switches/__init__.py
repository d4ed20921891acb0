# SPDX-License-Identifier: Apache-2.0
"""How an aspect is added: this folder and a row (docs/architecture.md, "To add something")."""
