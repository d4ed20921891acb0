# SPDX-License-Identifier: Apache-2.0
"""Callbacks of training frameworks, one file for each. Nothing else imports them."""
