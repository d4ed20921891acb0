// SPDX-License-Identifier: Apache-2.0
#include "metrics/cpu_scan.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "base/parallel.h"
#include "base/throwing.h"
#include "metrics/row_scan.h"

namespace pig::metrics {
namespace {

/// It takes some microseconds to wake a thread: its share of the reading must take far longer.
constexpr I64 kBytesPerPart = 4 << 20;

/// As much of rows whose logits lie apart is put together at a time, or kRowsOfLine of them: what
/// comes with one number in a cache line is used.
constexpr I64 kTogetherBytes = 256 << 10;
constexpr I64 kRowsOfLine = 16;

I64 bytes_of_format(Format format) { return format == kFloat64 ? 8 : format == kFloat32 ? 4 : 2; }

/// Puts rows of numbers that lie apart one after the other.
template <typename Number>
void put_together(const Batch& batch, I64 first, int rows, void* into) {
  const I64 row_stride = batch.logits_strides[batch.dims - 1];
  const Number* from = static_cast<const Number*>(batch.logits) + first;
  auto* const to = static_cast<Number*>(into);
  for (I64 c = 0; c < batch.classes; ++c, from += batch.class_stride)
    for (I64 i = 0; i < rows; ++i) to[i * batch.classes + c] = from[i * row_stride];
}

/// The rows `begin` to `end` of a batch, one run of the innermost dimension after the other.
class Scan {
 public:
  Scan(const Batch& batch, std::vector<ConfusionCell>& cells)
      : batch_(batch), cells_(cells), functions_(row_functions(batch.logits_format)) {
    rows_.classes = batch.classes;
    rows_.row_stride =
        batch.class_stride == 1 ? batch.logits_strides[batch.dims - 1] : batch.classes;
    rows_.predictions = batch.confusion != 0;
    rows_.weighted_sums = batch.label_smoothing != 0;
    rows_.class_weight = batch.class_weight;
    rows_.class_weight_sum = batch.class_weight_sum;
  }

  /// False where there is no memory for it.
  bool run(I64 begin, I64 end) {
    const int inner = batch_.dims - 1;
    const I64 row_bytes = batch_.classes * bytes_of_format(batch_.logits_format);
    I64 most = kRowsAtOnce;
    if (batch_.class_stride != 1) {
      most = std::clamp(kTogetherBytes / std::max<I64>(row_bytes, 1), kRowsOfLine, most);
      if (!try_allocating([&] { together_.resize(static_cast<size_t>(most * row_bytes)); }))
        return false;
    }
    while (begin < end) {
      const I64 left = batch_.sizes[inner] - begin % batch_.sizes[inner];
      const auto rows = static_cast<int>(std::min({left, end - begin, most}));
      run_of_rows(begin, rows);
      begin += rows;
    }
    together_ = {};
    return true;
  }

  const Totals& totals() const { return totals_; }

 private:
  bool is_cross_entropy() const { return batch_.loss_kind == kCrossEntropy; }

  struct Row {
    RowOffsets at;
    I64 target;
    double weight;
  };

  void run_of_rows(I64 begin, int rows) {
    const RowOffsets first = row_offsets(batch_, begin);
    Row read_rows[kRowsAtOnce];
    I64 targets[kRowsAtOnce];
    RowScan scans[kRowsAtOnce];
    bool any = false;
    for (int i = 0; i < rows; ++i) {
      const bool counts = read(first, i, read_rows[i]);
      targets[i] = counts ? read_rows[i].target : -1;
      any |= counts;
    }
    if (!any) return;
    rows_.logits = logits_of(first.logits, rows);
    rows_.targets = targets;
    rows_.rows = rows;
    (is_cross_entropy() ? functions_.rank_and_sums : functions_.rank)(rows_, scans);
    for (int i = 0; i < rows; ++i)
      if (targets[i] >= 0) add(begin + i, read_rows[i], scans[i]);
  }

  /// The logits of rows, one after the other.
  const void* logits_of(I64 first, int rows) {
    const I64 bytes = bytes_of_format(batch_.logits_format);
    if (batch_.class_stride == 1) return static_cast<const char*>(batch_.logits) + first * bytes;
    if (bytes == 2) put_together<uint16_t>(batch_, first, rows, together_.data());
    if (bytes == 4) put_together<uint32_t>(batch_, first, rows, together_.data());
    if (bytes == 8) put_together<uint64_t>(batch_, first, rows, together_.data());
    return together_.data();
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

  void add(I64 number, const Row& row, const RowScan& scan) {
    add_row(batch_, scan.rank, scan.finite, row.weight, row.at.loss, totals_);
    if (batch_.confusion != 0)
      cells_[static_cast<size_t>(number)] = {static_cast<int>(row.target),
                                             static_cast<int>(scan.prediction), row.weight};
    if (!is_cross_entropy()) return;
    add_scores(score_row(batch_, row.target, scan.sums), row.weight, totals_);
  }

  const Batch& batch_;
  std::vector<ConfusionCell>& cells_;
  const RowFunctions& functions_;
  LogitRows rows_{};
  Totals totals_{};
  std::vector<char> together_;  ///< the logits of a run, where they lie apart
};

I64 bytes_of(const Batch& batch) {
  return batch.rows * batch.classes * bytes_of_format(batch.logits_format);
}

}  // namespace

bool is_long(const Batch& batch) { return bytes_of(batch) >= kBytesPerPart; }

Totals scan_on_cpu(const Batch& batch, std::vector<ConfusionCell>& cells, int max_threads) {
  const I64 parts = std::min(bytes_of(batch) / kBytesPerPart, batch.rows);
  if (parts < 2) {
    Scan scan(batch, cells);
    if (!scan.run(0, batch.rows)) throw std::bad_alloc();
    return scan.totals();
  }
  std::vector<Scan> scans(static_cast<size_t>(parts), Scan(batch, cells));
  std::atomic<bool> are_whole = true;
  for_each_part(parts, max_threads, [&](I64 part) {
    Scan& scan = scans[static_cast<size_t>(part)];
    if (!scan.run(batch.rows * part / parts, batch.rows * (part + 1) / parts)) are_whole = false;
  });
  if (!are_whole) throw std::bad_alloc();
  // In the order of the parts: sums of floating-point numbers depend on it.
  Totals sum{};
  for (const Scan& scan : scans) add_totals(sum, scan.totals());
  return sum;
}

}  // namespace pig::metrics
