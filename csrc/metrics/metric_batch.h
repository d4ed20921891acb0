// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "base/dlpack.h"
#include "metrics/element_totals.h"
#include "metrics/metric_state.h"

namespace pig::metrics {

/// What an accumulator was made with.
struct MetricOptions {
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

  /// How much of the confusion matrix is part of each reading: a large one is left out.
  unsigned reading_matrix_words() const {
    return confusion && classes <= kMaxSnapshotClasses ? static_cast<unsigned>(classes * classes)
                                                       : 0;
  }
  U64 reading_bytes() const { return kStateBytes + U64{reading_matrix_words()} * sizeof(double); }

  U64 state_bytes() const {
    return kStateBytes + (confusion ? static_cast<U64>(classes * classes) * sizeof(double) : 0);
  }
};

/// Tensors of one shape and on one device as the scan and the kernels take them; null where one was
/// not given. Nothing where they do not fit each other, and where more than kMaxDims dimensions
/// cannot be merged: then Python says what is wrong, or does the update itself.
std::optional<ElementBatch> make_element_batch(std::span<const dlpack::Tensor* const> tensors);

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
