// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "base/dlpack.h"
#include "metrics/binary_totals.h"
#include "metrics/element_totals.h"
#include "metrics/metric_state.h"

namespace pig::metrics {

/// Histograms of up to so many doubles are part of a reading: those of four labels with the default
/// number of bins.
constexpr I64 kMaxReadingDoubles = 8192;

/// What an accumulator's updates are: they decide on its state's tail, and what its fields mean.
enum class Task { kClassification, kRegression, kBinary };

/// What an accumulator was made with.
struct MetricOptions {
  Task task = Task::kClassification;
  std::array<I64, kMaxTopk> topk{};
  int topk_count = 0;
  I64 classes = 0;  ///< 0: as many as the logits have
  bool confusion = false;
  I64 ignore_index = 0;
  int class_dim = 1;  ///< 1 or -1
  double ema = 0;     ///< how much of a moving average remains at an update; 0: there are none
  bool cross_entropy = true;  ///< whether updates without a loss compute it
  double label_smoothing = 0;
  std::vector<double> class_weight;  ///< of each class; empty: all are 1
  double class_weight_sum = 0;
  BinaryOptions binary{};

  /// How many of the first running values the accumulator's own updates add to.
  int own_scalars() const { return task == Task::kRegression ? int{kRegressionSlots} : 0; }

  /// Whether there is a confusion matrix that is left out of readings.
  bool confusion_is_large() const { return confusion && classes > kMaxSnapshotClasses; }

  /// How much of what follows the state is part of each reading.
  unsigned snapshot_tail_words() const {
    if (task == Task::kBinary) {  // all but the histograms
      const I64 words = binary_tail_doubles(binary) - binary_histogram_doubles(binary);
      return words <= kMaxSnapshotTail ? static_cast<unsigned>(words) : 0;
    }
    return confusion && !confusion_is_large() ? static_cast<unsigned>(classes * classes) : 0;
  }

  U64 state_bytes() const {
    if (task == Task::kBinary)
      return kStateBytes + static_cast<U64>(binary_tail_doubles(binary)) * sizeof(double);
    return kStateBytes + (confusion ? static_cast<U64>(classes * classes) * sizeof(double) : 0);
  }
  /// What readings have of it: large tails are left out.
  U64 reading_bytes() const {
    if (confusion_is_large()) return snapshot_bytes();
    if (task != Task::kBinary || !binary_is_large()) return state_bytes();
    return state_bytes() - static_cast<U64>(binary_histogram_doubles(binary)) * sizeof(double);
  }
  /// What a kernel's snapshot has of it.
  U64 snapshot_bytes() const { return kStateBytes + U64{snapshot_tail_words()} * sizeof(double); }
  /// Whether there are histograms that are left out of readings.
  bool binary_is_large() const {
    return task == Task::kBinary && binary_histogram_doubles(binary) > kMaxReadingDoubles;
  }
};

/// Tensors of one shape and on one device as the scan and the kernels take them; null where one was
/// not given. `of_rows` is the place of one that lacks the last dimension and has the same number
/// for all elements along it; -1: there is none. `row_size` is what the last dimension has to be;
/// 0: anything. Nothing where they do not fit each other, and where more than kMaxDims dimensions
/// cannot be merged: then Python says what is wrong, or does the update itself.
std::optional<ElementBatch> make_element_batch(std::span<const dlpack::Tensor* const> tensors,
                                               int of_rows = -1, I64 row_size = 0);

/// One update's tensors as the scan and the kernel take them. Nothing where they do not fit each
/// other or the options, and where more than kMaxDims dimensions cannot be merged: then Python says
/// what is wrong, or does the update itself. The weights of classes are those of the options, in
/// host memory.
std::optional<Batch> make_batch(const MetricOptions& options, const dlpack::Tensor& logits,
                                const dlpack::Tensor& target, const dlpack::Tensor* loss,
                                const dlpack::Tensor* weight);

/// What `update_rows` needs of a batch besides the rows: of which k it is known whether they are
/// correct, and whether they have a loss.
Batch batch_of_rows(const MetricOptions& options, const ElementBatch& rows);

/// How the numbers of a tensor are stored; kNone for what is no number here.
Format format_of(const dlpack::DataType& type);

const void* data_of(const dlpack::Tensor& tensor);

bool same_device(const dlpack::Tensor& a, const dlpack::Tensor& b);

}  // namespace pig::metrics
