// SPDX-License-Identifier: Apache-2.0
//
// What labels that are true or false add, with their scores. For the CPU and the kernels, so it
// includes nothing but the state.
//
// The ROC curve and the curve of precision and recall depend on the order of the scores alone. They
// are taken from two histograms, of the scores of true and of false labels, whose bins are uniform
// in the logit: there the scores of a model under training are spread out, while most probabilities
// are close to 0 and 1. What the order within a bin may change is known from its weights, so the
// error has a bound (pyinstrument_gpu/metrics/binary_values.py).
#pragma once

#include "metrics/metric_state.h"

namespace pig::metrics {

/// What a BinaryAccumulator was made with.
struct BinaryOptions {
  I64 labels;  ///< of a row; 0: a row is one label
  int bins;
  int calibration_bins;
  int from_logits;      ///< whether scores are logits; otherwise probabilities
  double threshold;     ///< a label with a score above it is predicted to be true
  double ignore_index;  ///< the target of a label that is left out
};

/// Bins reach from -kLogitRange to kLogitRange; the outer ones take what lies beyond.
constexpr double kLogitRange = 16;

PIG_SHARED int bin_of_logit(double logit, int bins) {
  const double position = (logit + kLogitRange) * (bins / (2 * kLogitRange));
  if (!(position > 0)) return 0;
  return position < bins ? static_cast<int>(position) : bins - 1;
}

PIG_SHARED double probability_of(double logit) { return 1 / (1 + exp(-logit)); }

/// The logit of a probability; infinite for 0 and 1.
PIG_SHARED double logit_of(double probability) { return log(probability / (1 - probability)); }

/// What lies behind the state of a BinaryAccumulator.
struct BinaryTail {
  double* calibration;  ///< [calibration bins][weight, sum of probabilities, weight of true labels]
  double* counts;       ///< [labels][true positives, false positives, false and true negatives]
  double* histograms;   ///< [labels][bins][weight of false labels, of true ones]
};

constexpr int kBinaryCounts = 4;

PIG_SHARED I64 binary_histogram_doubles(const BinaryOptions& options) {
  return (options.labels == 0 ? 1 : options.labels) * 2 * options.bins;
}

PIG_SHARED I64 binary_tail_doubles(const BinaryOptions& options) {
  return I64{kCalibrationSums} * options.calibration_bins +
         (options.labels == 0 ? 1 : options.labels) * kBinaryCounts +
         binary_histogram_doubles(options);
}

PIG_SHARED BinaryTail binary_tail(const BinaryOptions& options, double* begin) {
  const I64 labels = options.labels == 0 ? 1 : options.labels;
  double* const counts = begin + kCalibrationSums * options.calibration_bins;
  return {begin, counts, counts + labels * kBinaryCounts};
}

/// What one label says.
struct LabelScore {
  bool counts;
  bool is_true;
  bool predicted;
  int bin;
  double probability;
};

/// Decides whether a label counts, and counts it where it does not. `totals.nonfinite_rows` are the
/// labels whose score is not finite.
template <typename Count>
PIG_SHARED LabelScore score_label(const BinaryOptions& options, double score, double target,
                                  double weight, TotalsOf<Count>& totals) {
  LabelScore label{};
  if (target == options.ignore_index || weight == 0) {
    ++totals.ignored;
    return label;
  }
  if (!is_finite(weight) || weight < 0 || (target != 0 && target != 1)) {
    ++totals.invalid;
    return label;
  }
  if (!is_finite(score)) ++totals.nonfinite_rows;
  if (options.from_logits != 0 ? score != score : !(score >= 0 && score <= 1)) {
    ++totals.invalid;
    return label;
  }
  label.counts = true;
  label.is_true = target == 1;
  label.predicted = score > options.threshold;
  label.bin = bin_of_logit(options.from_logits != 0 ? score : logit_of(score), options.bins);
  if (options.calibration_bins != 0)
    label.probability = options.from_logits != 0 ? probability_of(score) : score;
  ++totals.count;
  totals.weight += weight;
  return label;
}

/// The bin of a probability among the equal parts of 0 to 1.
PIG_SHARED int calibration_bin(double probability, int bins) {
  const int bin = static_cast<int>(probability * bins);
  return bin < bins ? bin : bins - 1;
}

/// Where the parts of a label's weight go, by index from the tail's beginnings.
struct LabelPlaces {
  I64 count;
  I64 histogram;
  I64 calibration;
};

PIG_SHARED LabelPlaces places_of(const BinaryOptions& options, const LabelScore& label, I64 which) {
  const int outcome = label.is_true ? (label.predicted ? 0 : 2) : (label.predicted ? 1 : 3);
  const int bin = options.calibration_bins == 0
                      ? 0
                      : calibration_bin(label.probability, options.calibration_bins);
  return {which * kBinaryCounts + outcome,
          2 * (which * options.bins + label.bin) + (label.is_true ? 1 : 0),
          I64{kCalibrationSums} * bin};
}

}  // namespace pig::metrics
