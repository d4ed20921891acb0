// SPDX-License-Identifier: Apache-2.0
//
// A run of elements at a time, each operand is converted to doubles. What they add is summed in
// several lanes, by the element's place in its run: so they do not wait for each other, and their
// order is the same on every machine and for any number of threads.
//
// This file is compiled with -Wno-psabi (CMakeLists.txt): all functions that take vectors are
// compiled into their callers.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "base/instruction_set.h"
#include "base/parallel.h"
#include "metrics/cpu_scan.h"
#include "metrics/exponential.h"

namespace pig::metrics {
namespace {

#define PIG_INLINE __attribute__((always_inline)) inline

constexpr int kRun = 256;
constexpr int kLanes = 8;
/// As many as take far longer than to wake a thread.
constexpr I64 kElementsPerPart = 1 << 17;
constexpr I64 kMaxLabelParts = 64;

/// Numbers in a vector of an instruction set. The compiler makes larger ones into one number after
/// another, also with AVX-512, which has more registers.
constexpr int width_of(InstructionSet set) { return set == InstructionSet::kBaseline ? 2 : 4; }

template <int kWidth>
struct VectorOf;
template <>
struct VectorOf<2> {
  using Type [[gnu::vector_size(16)]] = double;
};
template <>
struct VectorOf<4> {
  using Type [[gnu::vector_size(32)]] = double;
};

/// `body`, an always_inline function, as compiled for an instruction set.
template <InstructionSet kSet, typename Body>
auto on(Body body) {
  return body();
}
#if defined(__x86_64__)
template <InstructionSet kSet, typename Body>
  requires(kSet == InstructionSet::kAvx2)
[[gnu::target("avx2")]] auto on(Body body) {
  return body();
}
template <InstructionSet kSet, typename Body>
  requires(kSet == InstructionSet::kAvx512)
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] auto on(Body body) {
  return body();
}
#endif

/// Calls `body` with the best instruction set, as an integral_constant.
template <typename Body>
auto with_best_set(Body body) {
  using enum InstructionSet;
  if (instruction_set() == kAvx512) return body(std::integral_constant<InstructionSet, kAvx512>());
  if (instruction_set() == kAvx2) return body(std::integral_constant<InstructionSet, kAvx2>());
  return body(std::integral_constant<InstructionSet, kBaseline>());
}

/// The same as `on`, for the best one.
template <typename Body>
auto on_best(Body body) {
  return with_best_set([&](auto set) { return on<set()>(body); });
}

/// The numbers of one run; those of an operand that was not given are 1.
struct Run {
  alignas(64) double of[kMaxOperands][kRun];
};

template <typename Stored, typename Convert>
[[gnu::always_inline]] inline void convert_run(const void* data, I64 offset, I64 stride, int count,
                                               double* into, Convert convert) {
  const auto* const from = static_cast<const Stored*>(data) + offset;
  if (stride == 1) {
    for (int i = 0; i < count; ++i) into[i] = convert(from[i]);
  } else {
    for (int i = 0; i < count; ++i) into[i] = convert(from[i * stride]);
  }
}

PIG_INLINE void load_run(const Operand& operand, I64 offset, I64 stride, int count, double* into) {
  const void* const data = operand.data;
  const auto plain = [](auto x) __attribute__((always_inline)) { return static_cast<double>(x); };
  switch (operand.format) {
    case kFloat64:
      return convert_run<double>(data, offset, stride, count, into, plain);
    case kFloat32:
      return convert_run<float>(data, offset, stride, count, into, plain);
    case kFloat16:
      return convert_run<unsigned short>(data, offset, stride, count, into,
                                         [](unsigned short bits) __attribute__((always_inline)) {
                                           return static_cast<double>(half_to_float(bits));
                                         });
    case kBfloat16:
      return convert_run<unsigned short>(data, offset, stride, count, into,
                                         [](unsigned short bits) __attribute__((always_inline)) {
                                           return static_cast<double>(bfloat16_to_float(bits));
                                         });
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

/// Calls `add(run, count)` for the elements `begin` to `end`, in their order.
template <typename Add>
void for_each_run(const ElementBatch& batch, I64 begin, I64 end, Add add) {
  Run run;
  for (int i = 0; i < batch.operand_count; ++i)
    if (batch.operands[i].data == nullptr) std::fill_n(run.of[i], kRun, 1.0);
  const int inner = batch.dims - 1;
  while (begin < end) {
    int filled = 0;  // a run may have several rows of a narrow tensor
    while (filled < kRun && begin < end) {
      const ElementOffsets offsets = element_offsets(batch, begin);
      const I64 left = batch.sizes[inner] - begin % batch.sizes[inner];
      const auto count = static_cast<int>(std::min<I64>({left, end - begin, kRun - filled}));
      for (int i = 0; i < batch.operand_count; ++i) {
        const Operand& operand = batch.operands[i];
        if (operand.data != nullptr)
          on_best([&]() __attribute__((always_inline)) {
            load_run(operand, offsets.of[i], operand.strides[inner], count, run.of[i] + filled);
          });
      }
      filled += count;
      begin += count;
    }
    add(run, filled);
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

/// The lanes that add up an update's elements, in vectors of an instruction set.
template <InstructionSet kSet, typename Update>
class Lanes {
 public:
  using Found = typename Update::template Found<U64>;

  Lanes() { std::fill_n(lanes_, kSets, Vectors::none()); }

  /// Adds whole rounds of all lanes, and then the rest.
  PIG_INLINE void add(const Update& update, const Run& run, int count, double shift) {
    Vectors lanes[kSets];
    std::copy_n(lanes_, kSets, lanes);
    int i = 0;
    for (; i + kLanes <= count; i += kLanes)
      for (int set = 0; set < kSets; ++set) {
        Vector numbers[Update::kOperands];
        for (int k = 0; k < Update::kOperands; ++k)
          numbers[k] = *reinterpret_cast<const Vector*>(&run.of[k][i + set * kWidth]);
        update.add(numbers, shift, lanes[set]);
      }
    std::copy_n(lanes, kSets, lanes_);
    for (; i < count; ++i) {
      double numbers[Update::kOperands];
      for (int k = 0; k < Update::kOperands; ++k) numbers[k] = run.of[k][i];
      update.add(numbers, shift, rest_);
    }
  }

  /// What all elements have added.
  Found sum() const {
    Found found;
    auto* const counts = reinterpret_cast<U64*>(&found);
    auto* const reals = reinterpret_cast<double*>(counts + Found::kCounts);
    for (int i = 0; i < Found::kCounts; ++i) counts[i] = static_cast<U64>(sum_of(i, Merge::kSum));
    for (int i = 0; i < Found::kReals; ++i)
      reals[i] = sum_of(Found::kCounts + i, Found::merge_of(i));
    add_totals(found, rest_);
    return found;
  }

 private:
  static constexpr int kWidth = width_of(kSet);
  using Vector = typename VectorOf<kWidth>::Type;
  using Vectors = typename Update::template Found<Vector, Vector>;
  static constexpr int kSets = kLanes / kWidth;

  double sum_of(int number, Merge how) const {
    double sum = neutral_of(how);
    for (int lane = 0; lane < kLanes; ++lane)
      sum = merged(how, sum,
                   reinterpret_cast<const Vector*>(&lanes_[lane / kWidth])[number][lane % kWidth]);
    return sum;
  }

  Vectors lanes_[kSets];
  Found rest_ = Found::none();
};

template <InstructionSet kSet, typename Update>
typename Update::template Found<U64> scan_part(const Update& update, I64 begin, I64 end,
                                               double shift) {
  Lanes<kSet, Update> lanes;
  for_each_run(update.batch, begin, end, [&](const Run& run, int count) {
    on<kSet>([&]() __attribute__((always_inline)) { lanes.add(update, run, count, shift); });
  });
  return lanes.sum();
}

/// What the labels of a run say, each part in an array of its own.
struct LabelRun {
  alignas(64) double weight[kRun];  ///< 0 where a label is not usable
  alignas(64) double probability[kRun];
  alignas(64) double usable[kRun];  ///< 1 or 0
  alignas(64) int32_t histogram[kRun];
  alignas(64) int32_t calibration[kRun];
  alignas(64) int32_t outcome[kRun];
};

/// How many are usable: with a score, a target and a weight that are finite and what they should
/// be. The same arithmetic as that of `score_label` and `places_of`, without branches.
PIG_INLINE int score_run(const BinaryOptions& options, const double* scores, const double* logits,
                         const double* targets, const double* weights, int count, LabelRun& into) {
  const double per_logit = options.bins / (2 * kLogitRange);
  const double last_bin = options.bins - 1;
  const double last_calibration = options.calibration_bins - 1;
  const double calibration_bins = options.calibration_bins;
  const double threshold = options.threshold, ignored = options.ignore_index;
  const bool from_logits = options.from_logits != 0;
  const double least = from_logits ? -std::numeric_limits<double>::max() : 0;
  const double most = from_logits ? std::numeric_limits<double>::max() : 1;
  int all = 0;
  for (int i = 0; i < count; ++i) {
    const double score = scores[i], target = targets[i];
    const bool usable = (score >= least) & (score <= most) & ((target == 0) | (target == 1)) &
                        (target != ignored) & is_finite(weights[i]) & (weights[i] > 0);
    const bool is_true = target == 1, predicted = score > threshold;
    double position = (logits[i] + kLogitRange) * per_logit;
    position = position > 0 ? position : 0;
    position = position < last_bin ? position : last_bin;
    into.weight[i] = usable ? weights[i] : 0;
    into.usable[i] = usable ? 1 : 0;
    into.histogram[i] = 2 * static_cast<int32_t>(position) + (is_true ? 1 : 0);
    into.outcome[i] = (is_true ? 0 : 1) + (predicted ? 0 : 2);
    all += usable ? 1 : 0;
  }
  if (options.calibration_bins == 0) return all;
  for (int i = 0; i < count; ++i) {
    double x = -scores[i];
    x = x > -708 ? x : -708;
    x = x < 708 ? x : 708;
    double probability = from_logits ? 1 / (1 + exponential(x)) : scores[i];
    probability = into.usable[i] != 0 ? probability : 0;
    const double bin = probability * calibration_bins;
    into.probability[i] = probability;
    into.calibration[i] =
        kCalibrationSums * static_cast<int32_t>(bin < last_calibration ? bin : last_calibration);
  }
  return all;
}

/// Adds a label that is no usable one: it is left out, or its logit is infinite.
LabelScore add_other_label(const BinaryOptions& options, double score, double target, double weight,
                           I64 which, const BinaryTail& tail, Totals& totals) {
  const LabelScore label = score_label(options, score, target, weight, totals);
  if (!label.counts) return label;
  const LabelPlaces places = places_of(options, label, which);
  tail.counts[places.count] += weight;
  tail.histograms[places.histogram] += weight;
  if (options.calibration_bins == 0) return label;
  double* const bin = tail.calibration + places.calibration;
  bin[0] += weight;
  bin[1] += weight * label.probability;
  if (label.is_true) bin[2] += weight;
  return label;
}

/// A row of several labels, while it is read.
struct LabelRow {
  I64 labels = 0;  ///< that count
  I64 predicted = 0;
  double weight = 0;

  void add(double of_row, bool is_predicted) {
    ++labels;
    predicted += is_predicted ? 1 : 0;
    weight = of_row;
  }
  void end(Totals& totals) {
    if (labels != 0) totals.correct[kExactRows] += weight;
    if (labels != 0 && labels == predicted) totals.correct[kExactWeight] += weight;
    *this = {};
  }
};

class LabelScan {
 public:
  LabelScan(const BinaryOptions& options, const ElementBatch& batch, double* tail)
      : options_(options), batch_(batch), tail_(binary_tail(options, tail)) {}

  Totals run(I64 begin, I64 end) {
    for_each_run(batch_, begin, end, [this](const Run& run, int count) { add_run(run, count); });
    if (options_.calibration_bins <= kMaxCopied)
      for (const auto& copy : calibration_)
        for (int i = 0; i < kCalibrationSums * options_.calibration_bins; ++i)
          tail_.calibration[i] += copy[i];
    return totals_;
  }

 private:
  void add_run(const Run& run, int count) {
    const double* const scores = run.of[kScore];
    const double* logits = scores;
    if (options_.from_logits == 0) {
      for (int i = 0; i < count; ++i) logits_[i] = logit_of(scores[i]);
      logits = logits_;
    }
    const double* const targets = run.of[kLabel];
    const double* const weights = run.of[kLabelWeight];
    const int usable = on_best([&]() __attribute__((always_inline)) {
      return score_run(options_, scores, logits, targets, weights, count, labels_);
    });
    add_calibration(count);
    if (options_.labels == 0)
      add_single_labels(run, count, usable);
    else
      add_rows(run, count);
  }

  void add_calibration(int count) {
    if (options_.calibration_bins == 0) return;
    const bool copied = options_.calibration_bins <= kMaxCopied;
    for (int i = 0; i < count; ++i) {
      double* const bin =
          (copied ? calibration_[i % kCopies] : tail_.calibration) + labels_.calibration[i];
      bin[0] += labels_.weight[i];
      bin[1] += labels_.weight[i] * labels_.probability[i];
      bin[2] += labels_.weight[i] * (labels_.histogram[i] & 1);
    }
  }

  void add_single_labels(const Run& run, int count, int usable) {
    double weight = 0;
    for (int i = 0; i < count; ++i) {
      tail_.histograms[labels_.histogram[i]] += labels_.weight[i];
      tail_.counts[labels_.outcome[i]] += labels_.weight[i];
      weight += labels_.weight[i];
    }
    totals_.count += static_cast<U64>(usable);
    totals_.weight += weight;
    if (usable == count) return;
    for (int i = 0; i < count; ++i)
      if (labels_.usable[i] == 0)
        add_other_label(options_, run.of[kScore][i], run.of[kLabel][i], run.of[kLabelWeight][i], 0,
                        tail_, totals_);
  }

  void add_rows(const Run& run, int count) {
    for (int i = 0; i < count; ++i) {
      const double weight = run.of[kLabelWeight][i];
      if (labels_.usable[i] != 0) {
        tail_.histograms[2 * options_.bins * which_ + labels_.histogram[i]] += weight;
        tail_.counts[kBinaryCounts * which_ + labels_.outcome[i]] += weight;
        ++totals_.count;
        totals_.weight += weight;
        row_.add(weight, labels_.outcome[i] == 0 || labels_.outcome[i] == 3);
      } else {
        const LabelScore label = add_other_label(options_, run.of[kScore][i], run.of[kLabel][i],
                                                 weight, which_, tail_, totals_);
        if (label.counts) row_.add(weight, label.predicted == label.is_true);
      }
      if (++which_ == options_.labels) {
        which_ = 0;
        row_.end(totals_);
      }
    }
  }

  /// Neighbours often have one bin. In copies of the bins they don't wait for each other.
  static constexpr int kCopies = 4;
  static constexpr int kMaxCopied = 64;  ///< bins

  const BinaryOptions& options_;
  const ElementBatch& batch_;
  const BinaryTail tail_;
  double calibration_[kCopies][kCalibrationSums * kMaxCopied]{};
  Totals totals_{};
  LabelRow row_;
  I64 which_ = 0;  ///< the next element's label
  LabelRun labels_;
  double logits_[kRun];
};

}  // namespace

template <typename Update>
typename Update::template Found<U64> scan_elements(const Update& update, double shift,
                                                   int max_threads) {
  return sum_of_parts<typename Update::template Found<U64>>(
      update.batch.elements, max_threads, [&](I64 begin, I64 end) {
        return with_best_set([&](auto set) { return scan_part<set()>(update, begin, end, shift); });
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
  if (parts < 2) return LabelScan(options, batch, tail).run(0, batch.elements);
  std::vector<double> tails(static_cast<size_t>(parts * size));
  std::vector<Totals> totals(static_cast<size_t>(parts));
  const I64 rows = batch.elements / row;
  for_each_part(parts, max_threads, [&](I64 part) {
    totals[static_cast<size_t>(part)] =
        LabelScan(options, batch, tails.data() + part * size)
            .run(rows * part / parts * row, rows * (part + 1) / parts * row);
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
