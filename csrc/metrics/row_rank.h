// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "metrics/metric_state.h"

namespace pig::metrics {

struct RowRank {
  I64 rank;     ///< how many logits stand before the target's in torch.argmax's order
  bool finite;  ///< whether all of the row's logits are
};

/// How many rows `rank` takes at most.
constexpr int kRowsAtOnce = 256;

/// The functions of one format. Strides are in elements.
struct RankFunctions {
  /// Logit c of row i is at `c * class_stride + i * row_stride`. Targets are classes, which is not
  /// checked, or negative: the rank of such a row means nothing.
  void (*rank)(const void* data, I64 classes, I64 class_stride, I64 row_stride, int rows,
               const I64* targets, RowRank* ranks);
  /// The first of the greatest logits, as torch.argmax finds it: a NaN is greatest.
  I64 (*argmax)(const void* data, I64 classes, I64 class_stride);
};

/// Of the best instruction set that this machine has. `format` is a floating-point one.
const RankFunctions& rank_functions(Format format);

}  // namespace pig::metrics
