// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "metrics/metric_state.h"

namespace pig::metrics {

struct RowRank {
  I64 rank;     ///< how many logits stand before the target's
  bool finite;  ///< whether all of the row's logits are
};

/// How many rows `columns` takes at most.
constexpr int kColumnRows = 256;

/// The functions of one format. Targets are classes: they are not checked.
struct RankFunctions {
  /// One row of contiguous logits.
  RowRank (*row)(const void* row, I64 classes, I64 target);
  /// Rows side by side: logit c of row i is at `c * class_stride + i * row_stride`, in elements.
  void (*columns)(const void* data, I64 classes, I64 class_stride, I64 row_stride, int rows,
                  const I64* targets, RowRank* ranks);
};

/// Of the best instruction set that this machine has. `format` is a floating-point one.
const RankFunctions& rank_functions(Format format);

/// The instruction sets that this machine has, best last; for tests.
enum class InstructionSet { kBaseline, kAvx2, kAvx512 };
InstructionSet best_instruction_set();
const RankFunctions& rank_functions(Format format, InstructionSet set);

/// The first of the greatest logits, as torch.argmax finds it: a NaN is greatest.
I64 argmax(const void* data, Format format, I64 classes, I64 class_stride);

}  // namespace pig::metrics
