// SPDX-License-Identifier: Apache-2.0
//
// What the host and the kernels of metric_kernel.cu agree on besides the state. Includes nothing
// but the state's header, for the same reason.
#pragma once

#include "metrics/binary_totals.h"
#include "metrics/element_batch.h"
#include "metrics/metric_state.h"

namespace pig::metrics {

constexpr int kThreads = 256;
/// Four on each of 192 multiprocessors, which is the most that a device has today (GB202; an H100
/// has 132, a B200 148).
constexpr int kBlocksPerProcessor = 4;
constexpr int kMaxBlocks = kBlocksPerProcessor * 192;
/// Updates on one stream follow one another and share a slot. The last slot is for those that were
/// captured into graphs; those on as many streams as there are others may run at once.
constexpr int kSlots = 4;

/// Words of 8 bytes in which a block hands on its totals: half of each is a number or the half of
/// one, the other half says of which launch it is.
constexpr int kPartWords = 5 + 2 * (1 + kMaxTopk + 6);

/// Where the blocks of one launch meet.
struct Slot {
  U64 progress;  ///< 0 while no launch is under way
  /// That have begun, and were not yet folded or counted as lost. In the upper half those that are
  /// no updates, but add to a running value.
  U64 launches;
  U64 parts[kPartWords][kMaxBlocks];
};

/// Device memory of one accumulator's updates. All bytes zero before the first.
struct Scratch {
  U64 sequence;      ///< the snapshot's: kernels don't read host memory
  U64 lost;          ///< updates that met another one in their slot and could not be added
  unsigned lock;     ///< 1 while a kernel changes the state and publishes it
  unsigned scalars;  ///< how many running values are published: as many as a launch knew of
  Slot slots[kSlots];
};

/// Mapped host memory that the last block of an update writes and the host reads without waiting.
/// `sequence` is odd while it is written. Of the state only the running values in use are: each
/// byte goes over the bus with each update.
struct Snapshot {
  U64 sequence;
  U64 lost;
  State state;
  double tail[kMaxSnapshotTail];
};

/// What every launch gets.
struct LaunchParameters {
  State* state;
  Scratch* scratch;
  Snapshot* snapshot;
  unsigned generation;  ///< the launch's number, never 0; replays of a graph have the same
  int slot;             ///< of its stream
  unsigned scalars;     ///< running values in use
  unsigned tail_words;  ///< of what follows the state, as many as are published
};

struct UpdateParameters {
  LaunchParameters launch;
  Batch batch;
};

struct ScalarParameters {
  LaunchParameters launch;
  const void* value;  ///< null: it is `number`
  Format format;
  int slot;  ///< of the running value
  double number;
  double ema;  ///< as in a Batch
};

struct ValuesParameters {
  LaunchParameters launch;
  ElementBatch batch;
  double ema;
  int slot;  ///< of the running value
};

struct RowsParameters {
  LaunchParameters launch;
  ElementBatch rows;
  Batch batch;
};

struct PairsParameters {
  LaunchParameters launch;
  ElementBatch batch;
  double ema;
};

struct LabelsParameters {
  LaunchParameters launch;
  ElementBatch batch;
  BinaryOptions options;
};

/// Elements that a thread reads at a time.
constexpr int kElementsAtOnce = 4;

/// How rows are given to threads, and with the format the name of the kernel.
enum class RowsBy : int { kThread, kWarp, kBlock };
constexpr int kRowsByCount = 3;

/// How many blocks of a kernel run at once: what has more in registers has less room.
PIG_SHARED constexpr int blocks_per_processor(bool cross_entropy, Format format, RowsBy by) {
  if (!cross_entropy) return kBlocksPerProcessor;
  return by == RowsBy::kThread || format == kFloat64 ? 2 : 3;
}

}  // namespace pig::metrics
