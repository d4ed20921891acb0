// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>

#include "base/dlpack.h"
#include "metrics/metric_state.h"

namespace pig::metrics {

/// What a MetricAccumulator was made with.
struct MetricOptions {
  std::array<I64, kMaxTopk> topk{};
  int topk_count = 0;
  I64 classes = 0;  ///< 0: as many as the logits have
  bool confusion = false;
  I64 ignore_index = 0;
  int class_dim = 1;  ///< 1 or -1

  /// Whether there is a confusion matrix that is left out of readings.
  bool confusion_is_large() const { return confusion && classes > kMaxSnapshotClasses; }

  /// How much of what follows the state is part of each reading.
  unsigned snapshot_tail_words() const {
    return confusion && !confusion_is_large() ? static_cast<unsigned>(classes * classes) : 0;
  }

  U64 state_bytes() const {
    return kStateBytes + (confusion ? static_cast<U64>(classes * classes) * sizeof(double) : 0);
  }
};

/// One update's tensors as the scan and the kernel take them. Nothing where they do not fit each
/// other or the options, and where more than kMaxDims dimensions cannot be merged: then Python says
/// what is wrong, or does the update itself.
std::optional<Batch> make_batch(const MetricOptions& options, const dlpack::Tensor& logits,
                                const dlpack::Tensor& target, const dlpack::Tensor* loss,
                                const dlpack::Tensor* weight);

/// How the numbers of a tensor are stored; kNone for what is no number here.
Format format_of(const dlpack::DataType& type);

const void* data_of(const dlpack::Tensor& tensor);

bool same_device(const dlpack::Tensor& a, const dlpack::Tensor& b);

}  // namespace pig::metrics
