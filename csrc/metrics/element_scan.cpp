// SPDX-License-Identifier: Apache-2.0
//
// A run of elements at a time, each operand is converted to doubles; then the elements are added
// one after the other, in the same order for any number of threads.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/parallel.h"
#include "metrics/cpu_scan.h"

namespace pig::metrics {
namespace {

constexpr int kRun = 256;
/// As many as take far longer than to wake a thread.
constexpr I64 kElementsPerPart = 1 << 17;
constexpr I64 kMaxLabelParts = 64;

/// The numbers of one run; those of an operand that was not given are 1.
struct Run {
  double of[kMaxOperands][kRun];
};

template <typename Stored, typename Convert>
void convert_run(const void* data, I64 offset, I64 stride, int count, double* into,
                 Convert convert) {
  const auto* const from = static_cast<const Stored*>(data) + offset;
  for (int i = 0; i < count; ++i) into[i] = static_cast<double>(convert(from[i * stride]));
}

void load_run(const Operand& operand, I64 offset, I64 stride, int count, double* into) {
  const void* const data = operand.data;
  const auto plain = [](auto x) { return x; };
  switch (operand.format) {
    case kFloat64:
      return convert_run<double>(data, offset, stride, count, into, plain);
    case kFloat32:
      return convert_run<float>(data, offset, stride, count, into, plain);
    case kFloat16:
      return convert_run<unsigned short>(data, offset, stride, count, into, half_to_float);
    case kBfloat16:
      return convert_run<unsigned short>(data, offset, stride, count, into, bfloat16_to_float);
    case kInt64:
      return convert_run<int64_t>(data, offset, stride, count, into, plain);
    case kInt32:
      return convert_run<int32_t>(data, offset, stride, count, into, plain);
    case kUint8:
      return convert_run<uint8_t>(data, offset, stride, count, into, plain);
    default:
      std::fill_n(into, count, 1.0);
  }
}

/// Calls `add(numbers)` for the elements `begin` to `end`, in their order: the number of each
/// operand.
template <int kOperands, typename Add>
void for_each_element(const ElementBatch& batch, I64 begin, I64 end, Add add) {
  Run run;
  const int inner = batch.dims - 1;
  while (begin < end) {
    const ElementOffsets offsets = element_offsets<kOperands>(batch, begin);
    const I64 left = batch.sizes[inner] - begin % batch.sizes[inner];
    const auto count = static_cast<int>(std::min<I64>({left, end - begin, kRun}));
    for (int k = 0; k < kOperands; ++k)
      load_run(batch.operands[k], offsets.of[k], batch.operands[k].strides[inner], count,
               run.of[k]);
    for (int i = 0; i < count; ++i) {
      double numbers[kOperands];
      for (int k = 0; k < kOperands; ++k) numbers[k] = run.of[k][i];
      add(numbers);
    }
    begin += count;
  }
}

/// The sum of what `scan(begin, end)` returns for the parts of a batch.
template <typename Totals, typename Scan>
Totals sum_of_parts(I64 elements, int max_threads, Scan scan) {
  const I64 parts = elements / kElementsPerPart;
  if (parts < 2) return scan(0, elements);
  std::vector<Totals> totals(static_cast<size_t>(parts));
  for_each_part(parts, max_threads, [&](I64 part) {
    totals[static_cast<size_t>(part)] =
        scan(elements * part / parts, elements * (part + 1) / parts);
  });
  Totals sum{};
  for (const Totals& part : totals) add_totals(sum, part);
  return sum;
}

/// The labels `begin` to `end`, whole rows. What goes there is added to `tail`.
Totals scan_some_labels(const BinaryOptions& options, const ElementBatch& batch,
                        const BinaryTail& tail, I64 begin, I64 end) {
  Totals totals{};
  I64 which = 0;  // the next element's label
  for_each_element<kBinaryOperands>(
      batch, begin, end, [&](const double (&numbers)[kBinaryOperands]) {
        const double weight = numbers[kLabelWeight];
        const LabelScore label =
            score_label(options, numbers[kScore], numbers[kLabel], weight, totals);
        if (label.counts) {
          const LabelPlaces places = places_of(options, label, which);
          tail.counts[places.count] += weight;
          tail.histograms[places.histogram] += weight;
          if (options.calibration_bins != 0) {
            double* const bin = tail.calibration + places.calibration;
            bin[0] += weight;
            bin[1] += weight * label.probability;
            if (label.is_true) bin[2] += weight;
          }
        }
        if (options.labels != 0 && ++which == options.labels) which = 0;
      });
  return totals;
}

}  // namespace

template <typename Update>
typename Update::template Found<U64> scan_elements(const Update& update, double shift,
                                                   int max_threads) {
  using Found = typename Update::template Found<U64>;
  return sum_of_parts<Found>(update.batch.elements, max_threads, [&](I64 begin, I64 end) {
    Found found = Found::none();
    for_each_element<Update::kOperands>(
        update.batch, begin, end,
        [&](const double (&numbers)[Update::kOperands]) { update.add(numbers, shift, found); });
    return found;
  });
}

template ValueTotals scan_elements(const ValuesParameters&, double, int);
template Totals scan_elements(const RowsParameters&, double, int);
template PairTotals scan_elements(const PairsParameters&, double, int);

Totals scan_labels(const BinaryOptions& options, const ElementBatch& batch, double* tail,
                   int max_threads) {
  // Each part has a tail of its own, and takes far longer to read than to add.
  const I64 row = std::max<I64>(options.labels, 1);
  const I64 size = binary_tail_doubles(options);
  const I64 parts = std::min(batch.elements / std::max(kElementsPerPart, 4 * size), kMaxLabelParts);
  if (parts < 2)
    return scan_some_labels(options, batch, binary_tail(options, tail), 0, batch.elements);
  std::vector<double> tails(static_cast<size_t>(parts * size));
  std::vector<Totals> totals(static_cast<size_t>(parts));
  const I64 rows = batch.elements / row;
  for_each_part(parts, max_threads, [&](I64 part) {
    totals[static_cast<size_t>(part)] =
        scan_some_labels(options, batch, binary_tail(options, tails.data() + part * size),
                         rows * part / parts * row, rows * (part + 1) / parts * row);
  });
  Totals sum{};
  for (I64 part = 0; part < parts; ++part) {
    add_totals(sum, totals[static_cast<size_t>(part)]);
    for (I64 i = 0; i < size; ++i) tail[i] += tails[static_cast<size_t>(part * size + i)];
  }
  return sum;
}

bool is_long(const ElementBatch& batch) { return batch.elements >= 1 << 15; }

}  // namespace pig::metrics
