# SPDX-License-Identifier: Apache-2.0
"""The life of a job over all of its attempts: what its time was spent on, from run files alone.

Runs become times of attempts (`run_times`, `attempts`), these intervals of a kind (`life`), the
intervals an exact division of the wall time (`division`), and that advice and a report.
"""
