// SPDX-License-Identifier: Apache-2.0
#include "metrics/cpu_scan.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#include "base/signals_blocked.h"
#include "metrics/row_rank.h"

namespace pig::metrics {
namespace {

/// A thread costs some 20 us to start: its share of the reading must take far longer.
constexpr U64 kBytesPerPart = 4 << 20;
constexpr int kMaxThreads = 16;

I64 bytes_of_format(Format format) { return format == kFloat64 ? 8 : format == kFloat32 ? 4 : 2; }

/// The rows `begin` to `end` of a batch, one run of the innermost dimension after the other.
class Scan {
 public:
  Scan(const Batch& batch, std::vector<ConfusionCell>& cells)
      : batch_(batch), cells_(cells), functions_(rank_functions(batch.logits_format)) {}

  Totals run(I64 begin, I64 end) {
    const int inner = batch_.dims - 1;
    while (begin < end) {
      const I64 left = batch_.sizes[inner] - begin % batch_.sizes[inner];
      const auto rows = static_cast<int>(std::min<I64>({left, end - begin, kRowsAtOnce}));
      run_of_rows(begin, rows);
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

  void run_of_rows(I64 begin, int rows) {
    const RowOffsets first = row_offsets(batch_, begin);
    Row read_rows[kRowsAtOnce];
    I64 targets[kRowsAtOnce];
    RowRank ranks[kRowsAtOnce];
    bool any = false;
    for (int i = 0; i < rows; ++i) {
      const bool counts = read(first, i, read_rows[i]);
      targets[i] = counts ? read_rows[i].target : -1;
      any |= counts;
    }
    if (!any) return;
    functions_.rank(address(first.logits), batch_.classes, batch_.class_stride,
                    batch_.logits_strides[batch_.dims - 1], rows, targets, ranks);
    for (int i = 0; i < rows; ++i)
      if (targets[i] >= 0) add(begin + i, read_rows[i], ranks[i]);
  }

  /// Row i of a run, if it counts.
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

  void add(I64 number, const Row& row, const RowRank& rank) {
    add_row(batch_, rank.rank, rank.finite, row.weight, row.at.loss, totals_);
    if (batch_.confusion == 0) return;
    const I64 predicted = rank.rank == 0 ? row.target
                                         : functions_.argmax(address(row.at.logits), batch_.classes,
                                                             batch_.class_stride);
    cells_[static_cast<size_t>(number)] = {static_cast<int>(row.target),
                                           static_cast<int>(predicted), row.weight};
  }

  const void* address(I64 offset) const {
    return static_cast<const char*>(batch_.logits) + offset * bytes_of_format(batch_.logits_format);
  }

  const Batch& batch_;
  std::vector<ConfusionCell>& cells_;
  const RankFunctions& functions_;
  Totals totals_{};
};

}  // namespace

U64 bytes_of(const Batch& batch) {
  return static_cast<U64>(batch.rows * batch.classes * bytes_of_format(batch.logits_format));
}

Totals scan_on_cpu(const Batch& batch, std::vector<ConfusionCell>& cells, int max_threads) {
  const auto parts =
      static_cast<I64>(std::min(bytes_of(batch) / kBytesPerPart, static_cast<U64>(batch.rows)));
  if (parts < 2) return Scan(batch, cells).run(0, batch.rows);
  std::vector<Totals> totals(static_cast<size_t>(parts));
  std::atomic<I64> next{0};
  const auto work = [&] {
    for (I64 part; (part = next.fetch_add(1, std::memory_order_relaxed)) < parts;)
      totals[static_cast<size_t>(part)] =
          Scan(batch, cells).run(batch.rows * part / parts, batch.rows * (part + 1) / parts);
  };
  const int threads = std::min({max_threads, kMaxThreads, static_cast<int>(parts)});
  std::vector<std::thread> others;
  try {
    const SignalsBlocked blocked;
    for (int i = 1; i < threads; ++i) others.emplace_back(work);
  } catch (const std::system_error&) {  // then this thread does more of it
  }
  work();
  for (std::thread& other : others) other.join();
  // In the order of the parts: sums of floating-point numbers depend on it.
  Totals sum{};
  for (const Totals& part : totals) add_totals(sum, part);
  return sum;
}

}  // namespace pig::metrics
