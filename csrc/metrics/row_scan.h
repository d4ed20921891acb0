// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "metrics/metric_state.h"

namespace pig::metrics {

/// What one pass over a row's logits finds.
struct RowScan {
  I64 rank;        ///< how many logits stand before the target's in torch.argmax's order
  I64 prediction;  ///< the class that torch.argmax returns; only where it was asked for
  bool finite;     ///< whether all of the row's logits are
  RowSums sums;    ///< only where they were asked for
};

/// Rows of logits that lie one after the other: logit c of row i is at `i * row_stride + c`, in
/// elements.
struct LogitRows {
  const void* logits;
  I64 classes;  ///< at least 1
  I64 row_stride;
  int rows;            ///< up to kRowsAtOnce
  const I64* targets;  ///< classes, which is not checked, or negative for rows that are not scanned
  bool predictions;    ///< whether they are asked for
  bool weighted_sums;  ///< whether RowSums::weighted_sum is asked for
  const double* class_weight;  ///< for these; null: all are 1
  double class_weight_sum;
};

constexpr int kRowsAtOnce = 256;

/// The functions of one format.
struct RowFunctions {
  void (*rank)(const LogitRows& rows, RowScan* scans);
  void (*rank_and_sums)(const LogitRows& rows, RowScan* scans);
};

/// Of AVX2, where the instruction set (base/instruction_set.h) has it. `format` is a floating-point
/// one.
const RowFunctions& row_functions(Format format);

/// Of each instruction set that they are compiled for, the best one last: its functions by format,
/// from kFloat64 on.
std::vector<const RowFunctions*> row_functions_by_instructions();

}  // namespace pig::metrics
