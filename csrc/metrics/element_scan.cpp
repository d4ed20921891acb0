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

}  // namespace

template <typename Update>
typename Update::template Found<U64> scan_elements(const Update& update, double shift,
                                                   int max_threads) {
  using Found = typename Update::template Found<U64>;
  const auto scan = [&](I64 begin, I64 end) {
    Found found = Found::none();
    for_each_element<Update::kOperands>(
        update.batch, begin, end,
        [&](const double (&numbers)[Update::kOperands]) { update.add(numbers, shift, found); });
    return found;
  };
  const I64 elements = update.batch.elements;
  const I64 parts = elements / kElementsPerPart;
  if (parts < 2) return scan(0, elements);
  std::vector<Found> of_parts(static_cast<size_t>(parts));
  for_each_part(parts, max_threads, [&](I64 part) {
    of_parts[static_cast<size_t>(part)] =
        scan(elements * part / parts, elements * (part + 1) / parts);
  });
  Found all = Found::none();
  for (const Found& part : of_parts) add_totals(all, part);
  return all;
}

template ValueTotals scan_elements(const ValuesParameters&, double, int);
template Totals scan_elements(const RowsParameters&, double, int);

bool is_long(const ElementBatch& batch) { return batch.elements >= 1 << 15; }

}  // namespace pig::metrics
