// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "metrics/metric_state.h"

namespace pig::metrics {

/// Where a row of a batch counts in the confusion matrix.
struct ConfusionCell {
  int target = -1;  ///< -1: the row does not count
  int predicted = 0;
  double weight = 0;
};

/// Sums of the confusion matrix in a state: for each class its row, its column, and its element of
/// the diagonal, which is all that precision, recall and F1 are made of. Each update adds to them,
/// because it takes longer than a training step to sum the matrix of many classes.
///
/// They belong to one state, after a certain update. When it has been changed by other means, they
/// are summed anew.
class ConfusionSums {
 public:
  /// Behind so many bins of the calibration; no classes: there is no matrix.
  ConfusionSums(I64 classes, int calibration_bins)
      : classes_(static_cast<size_t>(classes)),
        calibration_bins_(calibration_bins),
        sums_(3 * classes_) {}

  /// Has them be those of the state, if that is known without a look at its matrix.
  bool follow(const State& state) {
    if (state.updates == 0) clear(state);
    return state_ == &state && updates_ == state.updates && resets_ == state.resets;
  }
  /// The state has been reset.
  void clear(const State& state) {
    std::fill(sums_.begin(), sums_.end(), 0);
    remember(state);
  }
  void add(const ConfusionCell& cell) {
    const auto target = static_cast<size_t>(cell.target);
    const auto predicted = static_cast<size_t>(cell.predicted);
    sums_[target] += cell.weight;
    sums_[classes_ + predicted] += cell.weight;
    if (target == predicted) sums_[2 * classes_ + target] += cell.weight;
  }
  /// What was added makes them those of the state as it is now.
  void remember(const State& state) {
    state_ = &state;
    updates_ = state.updates;
    resets_ = state.resets;
  }

  /// Rows, columns, diagonal.
  const std::vector<double>& of(State& state) {
    if (follow(state)) return sums_;
    std::fill(sums_.begin(), sums_.end(), 0);
    const double* row = confusion_of(state, calibration_bins_);
    for (size_t target = 0; target < classes_; ++target, row += classes_) {
      double sum = 0;
      for (size_t predicted = 0; predicted < classes_; ++predicted) {
        sum += row[predicted];
        sums_[classes_ + predicted] += row[predicted];
      }
      sums_[target] = sum;
      sums_[2 * classes_ + target] = row[target];
    }
    remember(state);
    return sums_;
  }

 private:
  size_t classes_;
  int calibration_bins_;
  std::vector<double> sums_;
  const State* state_ = nullptr;
  U64 updates_ = 0;
  U64 resets_ = 0;
};

}  // namespace pig::metrics
