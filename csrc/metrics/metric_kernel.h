// SPDX-License-Identifier: Apache-2.0
//
// What the host and the kernels of metric_kernel.cu agree on besides the state. Includes nothing
// but the state's header, for the same reason.
#pragma once

#include "metrics/metric_state.h"

namespace pig::metrics {

constexpr int kThreads = 256;
constexpr int kMaxBlocks = 1024;

/// Device memory of one accumulator's updates. All bytes zero before the first.
struct Scratch {
  unsigned finished;  ///< blocks of the running update that are done
  unsigned pad;
  Totals parts[kMaxBlocks];
};

/// Mapped host memory that the last block of an update writes and the host reads without waiting.
/// `sequence` is odd while it is written.
struct Snapshot {
  U64 sequence;
  State state;
  double confusion[kMaxSnapshotClasses * kMaxSnapshotClasses];
};

/// Everything that one launch gets.
struct UpdateParameters {
  Batch batch;
  State* state;
  Scratch* scratch;
  Snapshot* snapshot;
};

struct ScalarParameters {
  const void* value;  ///< null: it is `number`
  Format format;
  int slot;
  double number;
  State* state;
  Snapshot* snapshot;
  I64 confusion_classes;  ///< 0: none
};

/// How rows are given to threads, and with the format the name of the kernel.
enum class RowsBy : int { kThread, kWarp, kBlock };
constexpr int kRowsByCount = 3;

}  // namespace pig::metrics
