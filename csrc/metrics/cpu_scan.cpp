// SPDX-License-Identifier: Apache-2.0
#include "metrics/cpu_scan.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace pig::metrics {
namespace {

/// A thread costs some 20 us to start: its share of the reading must take far longer.
constexpr U64 kBytesPerPart = 4 << 20;
constexpr int kMaxThreads = 16;

I64 bytes_of_format(Format format) { return format == kFloat64 ? 8 : format == kFloat32 ? 4 : 2; }

/// The rows `begin` to `end` of a batch, one stretch of the innermost dimension after the other.
class Scan {
 public:
  Scan(const Batch& batch, State& state, InstructionSet set)
      : batch_(batch), state_(state), functions_(rank_functions(batch.logits_format, set)) {}

  Totals run(I64 begin, I64 end) {
    const int inner = batch_.dims - 1;
    while (begin < end) {
      const I64 left = batch_.sizes[inner] - begin % batch_.sizes[inner];
      const I64 rows = std::min(left, end - begin);
      stretch(row_offsets(batch_, begin), rows);
      begin += rows;
    }
    return totals_;
  }

 private:
  struct Row {
    RowOffsets at;
    I64 target;
    double weight;
  };

  void stretch(const RowOffsets& first, I64 rows) {
    const bool by_row = batch_.class_stride == 1 || batch_.classes <= 1;
    if (by_row) {
      for (I64 i = 0; i < rows; ++i) {
        prefetch_target(first, std::min(i + 2, rows - 1));
        Row row;
        if (!read(first, i, row)) continue;
        const RowRank rank = functions_.row(address(row.at.logits), batch_.classes, row.target);
        add(row, rank);
      }
      return;
    }
    for (I64 begin = 0; begin < rows; begin += kColumnRows)
      columns(first, begin, static_cast<int>(std::min<I64>(kColumnRows, rows - begin)));
  }

  void columns(const RowOffsets& first, I64 begin, int rows) {
    Row counted[kColumnRows];
    bool counts[kColumnRows];
    I64 targets[kColumnRows];
    RowRank ranks[kColumnRows];
    bool any = false;
    for (int i = 0; i < rows; ++i) {
      counts[i] = read(first, begin + i, counted[i]);
      // A row that does not count is ranked with the others, and left out.
      targets[i] = counts[i] ? counted[i].target : 0;
      any |= counts[i];
    }
    if (!any) return;
    const I64 row_stride = batch_.logits_strides[batch_.dims - 1];
    functions_.columns(address(first.logits + begin * row_stride), batch_.classes,
                       batch_.class_stride, row_stride, rows, targets, ranks);
    for (int i = 0; i < rows; ++i)
      if (counts[i]) add(counted[i], ranks[i]);
  }

  /// A row's scan begins with the logit of its target, which lies anywhere in it.
  void prefetch_target(const RowOffsets& first, I64 i) const {
    const int inner = batch_.dims - 1;
    const I64 target = load_index(batch_.target, batch_.target_format,
                                  first.target + i * batch_.target_strides[inner]);
    // Whatever the target holds: a prefetch reads nothing.
    __builtin_prefetch(address(first.logits + i * batch_.logits_strides[inner] + target));
  }

  /// Row i of a stretch, if it counts.
  bool read(const RowOffsets& first, I64 i, Row& row) {
    const int inner = batch_.dims - 1;
    row.at.logits = first.logits + i * batch_.logits_strides[inner];
    row.at.target = first.target + i * batch_.target_strides[inner];
    row.at.weight = first.weight + i * batch_.weight_strides[inner];
    row.at.loss = first.loss + i * batch_.loss_strides[inner];
    row.target = load_index(batch_.target, batch_.target_format, row.at.target);
    row.weight = batch_.weight == nullptr
                     ? 1
                     : load_real(batch_.weight, batch_.weight_format, row.at.weight);
    return row_counts(batch_, row.target, row.weight, totals_);
  }

  void add(const Row& row, const RowRank& rank) {
    add_row(batch_, rank.rank, rank.finite, row.weight, row.at, totals_);
    if (batch_.confusion == 0) return;
    const I64 predicted = rank.rank == 0 ? row.target
                                         : argmax(address(row.at.logits), batch_.logits_format,
                                                  batch_.classes, batch_.class_stride);
    std::atomic_ref(confusion_of(state_)[row.target * batch_.classes + predicted])
        .fetch_add(row.weight, std::memory_order_relaxed);
  }

  const void* address(I64 offset) const {
    return static_cast<const char*>(batch_.logits) + offset * bytes_of_format(batch_.logits_format);
  }

  const Batch& batch_;
  State& state_;
  const RankFunctions& functions_;
  Totals totals_;
};

/// Takes parts until none is left; any number of threads may do so at once.
class Parts {
 public:
  Parts(const Batch& batch, State& state, InstructionSet set, I64 count)
      : batch_(batch), state_(state), set_(set), totals_(static_cast<size_t>(count)) {}

  void work() {
    const auto count = static_cast<I64>(totals_.size());
    for (I64 part; (part = next_.fetch_add(1, std::memory_order_relaxed)) < count;)
      totals_[static_cast<size_t>(part)] =
          Scan(batch_, state_, set_)
              .run(batch_.rows * part / count, batch_.rows * (part + 1) / count);
  }

  /// In the order of the parts: sums of floating-point numbers depend on it.
  Totals sum() const {
    Totals sum;
    for (const Totals& part : totals_) add_totals(sum, part);
    return sum;
  }

 private:
  const Batch& batch_;
  State& state_;
  InstructionSet set_;
  std::vector<Totals> totals_;
  std::atomic<I64> next_{0};
};

}  // namespace

U64 bytes_of(const Batch& batch) {
  return static_cast<U64>(batch.rows * batch.classes * bytes_of_format(batch.logits_format));
}

Totals scan_on_cpu(const Batch& batch, State& state, int max_threads, InstructionSet set) {
  const U64 parts = std::min<U64>(bytes_of(batch) / kBytesPerPart, static_cast<U64>(batch.rows));
  if (parts < 2) return Scan(batch, state, set).run(0, batch.rows);
  Parts work(batch, state, set, static_cast<I64>(parts));
  const int threads = std::min({max_threads, kMaxThreads, static_cast<int>(parts)});
  std::vector<std::thread> others;
  // Signals go to the program's own threads: the new ones inherit a full mask.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    for (int i = 1; i < threads; ++i) others.emplace_back([&work] { work.work(); });
  } catch (const std::system_error&) {  // then this thread does more of it
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  work.work();
  for (std::thread& other : others) other.join();
  return work.sum();
}

}  // namespace pig::metrics
