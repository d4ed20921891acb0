# SPDX-License-Identifier: Apache-2.0
"""From the histograms of a BinaryAccumulator to areas under curves, and how exact they are.

A histogram has the weight of false and of true labels by their scores. Which of two labels in one
bin has the greater score is not known; all that depends on it is bounded here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.metrics.values import shares

Array = NDArray[np.float64]


def area_under_roc(histograms: Array) -> tuple[Array, Array]:
    """The area under the receiver operating characteristic, and its greatest error.

    It is the share of pairs of a true and a false label in which the true one has the greater
    score; a tie is half a pair. So are two labels in one bin, and those are what may be wrong.

    Args:
        histograms: (labels, bins, 2): the weight of false and of true labels, by ascending scores.

    Returns:
        Both by label; NaN where all labels are true, or all are false.
    """
    with np.errstate(invalid="ignore"):
        false, true = np.moveaxis(histograms / histograms.sum(axis=1, keepdims=True), -1, 0)
    below = _before(false)
    halves = (true * false).sum(axis=1) / 2
    area = (true * below).sum(axis=1) + halves
    return np.clip(area, 0, 1), halves  # by rounding it may be above


def average_precision(histograms: Array) -> tuple[Array, Array]:
    """The average precision, which is the mean over true labels of the precision at their score,
    and its greatest error.

    The estimate has the true and false labels of a bin spread evenly over it, so that precision
    changes along the curve of Davis and Goadrich, The Relationship Between Precision-Recall and ROC
    Curves (2006). Precision is at its highest where the true labels of a bin are tied and stand
    before the false ones, and at its lowest where they stand behind them, one by one.

    Args and returns: as for `area_under_roc`; NaN where there is no true label.
    """
    # From the highest score to the lowest.
    false, true = np.moveaxis(histograms[:, ::-1], -1, 0)
    all_true = true.sum(axis=1)
    with np.errstate(all="ignore"):
        # Only ratios matter, and these numbers stay within what can be multiplied.
        scale = histograms.sum(axis=(1, 2))[:, np.newaxis]
        false, true, all_true = false / scale, true / scale, all_true / scale[:, 0]
        true_before, false_before = _before(true), _before(false)

        highest = true * (true_before + true) / (true_before + true + false_before)
        # The integral of (T + t) / (T + t + F) over t from 0 to `true`, with all false ones in F.
        others = false_before + false
        lowest = true - others * np.log1p(true / (true_before + others))
        # The same where F grows with t.
        slope = 1 + false / true
        begin = true_before + false_before
        even = (true + (true_before - begin / slope) * np.log1p(slope * true / begin)) / slope

        highest, lowest, even = (
            np.where(true > 0, each, 0).sum(axis=1) / all_true
            for each in (
                highest,
                np.where(others > 0, lowest, true),
                np.where(begin > 0, even, true / slope),
            )
        )
        # All lie between 0 and 1, but for rounding.
        even = np.clip(even, 0, 1)
        return even, np.clip(np.maximum(highest - even, even - lowest), 0, 1)


def ratios_of(counts: Array) -> dict[str, Array]:
    """Accuracy, precision, recall and F1 from (labels, 4): the weight of true positives, false
    positives, false negatives and true negatives. NaN where a label does not occur; of the last
    three also where it is neither true nor predicted to be."""
    true_positive, false_positive, false_negative, _ = counts.T
    occurs = true_positive + false_positive + false_negative > 0

    total = counts.sum(axis=1)
    correct = counts[:, 0] + counts[:, 3]
    return {
        "accuracy": shares(correct, total, total > 0),
        "precision": shares(true_positive, true_positive + false_positive, occurs),
        "recall": shares(true_positive, true_positive + false_negative, occurs),
        "f1": shares(
            2 * true_positive, 2 * true_positive + false_positive + false_negative, occurs
        ),
    }


def curves_of(histograms: Array) -> dict[str, Array]:
    """The areas under both curves and their errors, by label."""
    auroc, auroc_error = area_under_roc(histograms)
    precision, precision_error = average_precision(histograms)
    return {
        "auroc": auroc,
        "auroc_error": auroc_error,
        "average_precision": precision,
        "average_precision_error": precision_error,
    }


def _before(weights: Array) -> Array:
    """What stands before each bin."""
    sums = np.cumsum(weights, axis=1)
    return np.concatenate([np.zeros_like(sums[:, :1]), sums[:, :-1]], axis=1)
