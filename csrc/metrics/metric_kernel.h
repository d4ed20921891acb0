// SPDX-License-Identifier: Apache-2.0
//
// What the host and the kernels of metric_kernel.cu agree on besides the state. Includes nothing
// but the state's header, for the same reason.
#pragma once

#include "metrics/element_totals.h"
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
constexpr int kPartWords = Totals::kCounts + 2 * Totals::kReals;

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
  U64 sequence;      ///< of the newest publication: kernels don't read host memory
  U64 lost;          ///< updates that met another one in their slot and could not be added
  unsigned lock;     ///< 1 while a kernel changes the state and publishes it
  unsigned scalars;  ///< how many running values are published: as many as a launch knew of
  Slot slots[kSlots];
};

/// Mapped host memory that the last block of an update writes and the host reads without waiting.
/// The n-th publication stands in the buffer n % 2. Each word is two halves, and with each half
/// stands n: so the host knows what belongs together, and the device need not wait for the bus. Of
/// the state only the running values in use are there, as each byte goes over the bus.
struct Snapshot {
  static constexpr unsigned kHead = 2;  ///< how many words of the state and of the matrix; `lost`
  static constexpr unsigned kWords =
      kHead + kStateBytes / 8 + kMaxSnapshotClasses * kMaxSnapshotClasses;
  U64 halves[2][2 * kWords];
};

/// What every launch gets.
struct LaunchParameters {
  State* state;
  Scratch* scratch;
  Snapshot* snapshot;
  unsigned generation;    ///< the launch's number, never 0; replays of a graph have the same
  int slot;               ///< of its stream
  unsigned scalars;       ///< running values in use
  unsigned matrix_words;  ///< of the confusion matrix, as many as are published
};

/// Writes the words from `first` on, each `step`-th, of the publication `number`, which has so many
/// running values.
PIG_SHARED void publish_words(const LaunchParameters& p, unsigned number, unsigned scalars,
                              unsigned first, unsigned step) {
  constexpr unsigned kStateWords = sizeof(State) / 8;
  const unsigned front = (sizeof(State) - sizeof(State::scalars) + scalars * sizeof(Scalar)) / 8;
  const auto* const from = reinterpret_cast<const volatile U64*>(p.state);
  auto* const to = static_cast<volatile U64*>(p.snapshot->halves[number % 2]);
  const U64 tag = static_cast<U64>(number) << 32;
  for (unsigned i = first; i < Snapshot::kHead + front + p.matrix_words; i += step) {
    const unsigned word = i - Snapshot::kHead;
    const U64 value = i == 0   ? static_cast<U64>(p.matrix_words) << 32 | front
                      : i == 1 ? p.scratch->lost
                               : from[word < front ? word : kStateWords + (word - front)];
    to[2 * i] = tag | (value & 0xFFFFFFFFu);
    to[2 * i + 1] = tag | value >> 32;
  }
}

// An update is named by what its kernel takes: a struct with
//
//   Found          what is found in its rows or elements (metric_state.h)
//   kIsUpdate      false for what only adds to a running value
//   is_used(i)     whether the i-th double of the totals is used; others are 0, and not handed on
//   fold(found, shift, state)  adds it to the state: all of an update, which has one shift
//
// and where it is read element by element
//
//   kOperands
//   add(numbers, shift, totals)  adds an element by its operands
//   kBlocks        as many run on a multiprocessor at once

struct UpdateParameters {
  template <typename Count>
  using Found = TotalsOf<Count>;
  static constexpr bool kIsUpdate = true;

  LaunchParameters launch;
  Batch batch;

  PIG_SHARED bool is_used(int real) const {
    if (real == PIG_REAL(weight)) return true;
    if (real >= PIG_REAL(correct) && real < PIG_REAL(correct) + kMaxTopk)
      return batch.topk[real - PIG_REAL(correct)] != 0;
    if (batch.loss_kind == kCrossEntropy) return true;
    return batch.loss_kind == kLossPerRow &&
           (real == PIG_REAL(loss_sum) || real == PIG_REAL(loss_weight));
  }
  PIG_SHARED void fold(Found<U64>& found, double, State& state) const {
    fold_update(batch, found, state);
  }
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
  template <typename Count>
  using Found = ValueTotalsOf<Count>;
  static constexpr bool kIsUpdate = false;
  static constexpr int kOperands = kValueOperands, kBlocks = 3;

  LaunchParameters launch;
  ElementBatch batch;
  double ema;
  int slot;  ///< of the running value

  PIG_SHARED bool is_used(int) const { return true; }
  template <typename Count>
  PIG_SHARED_INLINE void add(const double (&numbers)[kOperands], double shift,
                             Found<Count>& totals) const {
    add_value(numbers[kValue], numbers[kValueWeight], shift, totals);
  }
  PIG_SHARED void fold(Found<U64>& found, double shift, State& state) const {
    fold_values(found, shift, ema, state.scalars[slot]);
  }
};

struct RowsParameters {
  template <typename Count>
  using Found = TotalsOf<Count>;
  static constexpr bool kIsUpdate = true;
  static constexpr int kOperands = kRowOperands, kBlocks = 2;

  LaunchParameters launch;
  ElementBatch batch;
  Batch rows;  ///< of which k something is known, and of what loss

  PIG_SHARED bool is_used(int real) const {
    if (real == PIG_REAL(weight)) return true;
    if (real >= PIG_REAL(correct)) return rows.topk[real - PIG_REAL(correct)] != 0;
    if (real == PIG_REAL(loss_sum) || real == PIG_REAL(loss_weight))
      return rows.loss_kind == kLossPerRow;
    return real >= PIG_REAL(entropy_sum) && batch.operands[kRowEntropy].data != nullptr;
  }
  template <typename Count>
  PIG_SHARED_INLINE void add(const double (&numbers)[kOperands], double,
                             Found<Count>& totals) const {
    add_row_values(rows, batch, numbers, totals);
  }
  PIG_SHARED void fold(Found<U64>& found, double, State& state) const {
    fold_update(rows, found, state);
  }
};

/// Elements that a thread reads at a time, four of them side by side.
constexpr int kElementsAtOnce = 16;

/// How rows are given to threads, and with the format the name of the kernel.
enum class RowsBy : int { kThread, kWarp, kBlock };
constexpr int kRowsByCount = 3;

/// How many blocks of a kernel run at once: what has more in registers has less room.
PIG_SHARED constexpr int blocks_per_processor(bool cross_entropy, Format format, RowsBy by) {
  const bool is_large = by == RowsBy::kWarp || (by == RowsBy::kThread && format == kFloat64);
  if (!cross_entropy) return is_large ? 3 : kBlocksPerProcessor;
  return by == RowsBy::kBlock && format != kFloat64 ? 3 : 2;
}

}  // namespace pig::metrics
