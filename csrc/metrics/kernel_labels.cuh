// SPDX-License-Identifier: Apache-2.0
//
// Updates of labels that are true or false.
//
// Most labels of a model are in few bins, where atomic operations on global memory would wait for
// each other. So a block tallies labels without weights in shared memory, as whole numbers, and
// adds what it has found once. Sums of probabilities are whole numbers of 2^-48, in two words, so
// they do not depend on the order either; the last block makes them a double.
#pragma once

#include "metrics/kernel_elements.cuh"
#include "metrics/kernel_finish.cuh"
#include "metrics/kernel_numbers.cuh"

namespace pig::metrics {
namespace {

constexpr int kTalliedBins = 1024;  ///< of all labels together
/// Labels that a thread reads before a block hands on its tallies: its warps together count in 16
/// bits.
constexpr I64 kLabelsOfThread = 60'000 / kWarps / kElementsAtOnce * kElementsAtOnce;
/// Logits of which e to the -x is kept: multiples of 1/32 from -kLogitRange to kLogitRange.
constexpr int kExps = 1025;

/// What a block tallies. Each lane has sums of its own for the few bins of the calibration.
union Tallies {
  struct {
    unsigned histogram[2 * kTalliedBins];
    unsigned counts[kTalliedCalibration][32];  ///< labels, and in the upper half the true ones
    unsigned low[kTalliedCalibration][32];     ///< of the sum of the probabilities
    unsigned high[kTalliedCalibration][32];
    double exps[kExps];
  };
  double sums[kTalliedCalibration][kCalibrationSums][32];  ///< where labels have weights
};

// Not in a template: the emulator of the tests would not find it there.
__device__ Tallies& tallies() {
  __shared__ U64 words[sizeof(Tallies) / sizeof(U64)];
  return *reinterpret_cast<Tallies*>(words);
}

/// Where the labels of a block go.
class LabelTally {
 public:
  __device__ explicit LabelTally(const LabelsParameters& p)
      : options_(p.options),
        scratch_(*p.launch.scratch),
        tail_(binary_tail(p.options, reinterpret_cast<double*>(p.launch.state + 1))),
        has_weights_(p.batch.operands[kLabelWeight].data != nullptr),
        has_histogram_(!has_weights_ && binary_histogram_doubles(options_) <= 2 * kTalliedBins),
        has_calibration_(options_.calibration_bins <= kTalliedCalibration &&
                         options_.labels <= 32 * kLabelsOfThread) {}

  __device__ const BinaryOptions& options() const { return options_; }
  __device__ const BinaryTail& tail() const { return tail_; }
  /// Whether all that labels add is tallied.
  __device__ bool is_complete() const { return has_histogram_ && has_calibration_; }

  /// By all threads, before the first label.
  __device__ void clear() const {
    auto* const words = reinterpret_cast<unsigned*>(&tallies());
    const auto* const end = reinterpret_cast<unsigned*>(
        has_weights_ ? reinterpret_cast<double*>(&tallies() + 1) : tallies().exps);
    for (unsigned* word = words + threadIdx.x; word < end; word += kThreads) *word = 0;
    __syncthreads();
  }

  /// Adds a label that counts, and returns which of its counts that is.
  __device__ int add(const LabelScore& label, double weight, I64 which) const {
    const LabelPlaces places = places_of(options_, label, which);
    if (has_histogram_)
      atomicAdd(&tallies().histogram[places.histogram], 1u);
    else
      atomicAdd(&tail_.histograms[places.histogram], weight);
    const auto bin = static_cast<int>(places.calibration / kCalibrationSums);
    if (options_.calibration_bins == 0) {
    } else if (has_calibration_ && !has_weights_) {
      add_probability(bin, label.is_true ? 1 : 0, label.probability);
    } else {
      double* const sums = has_calibration_ ? &tallies().sums[bin][0][threadIdx.x % 32]
                                            : tail_.calibration + places.calibration;
      const int stride = has_calibration_ ? 32 : 1;
      atomicAdd(&sums[0], weight);
      atomicAdd(&sums[stride], weight * label.probability);
      if (label.is_true) atomicAdd(&sums[2 * stride], weight);
    }
    return static_cast<int>(places.count - which * kBinaryCounts);
  }

  /// Adds the probability of a label without a weight to a bin of the calibration.
  static __device__ void add_probability(int bin, unsigned is_true, double probability) {
    // Between 16 and 32 the last bit of a double is 2^-48.
    const auto bits = static_cast<U64>(__double_as_longlong(probability + 16));
    const auto low = static_cast<unsigned>(bits);
    const unsigned high = static_cast<unsigned>(bits >> 32) - 0x40300000u;
    const unsigned lane = threadIdx.x % 32;
    Tallies& all = tallies();
    const unsigned before = atomicAdd(&all.low[bin][lane], low);
    atomicAdd(&all.high[bin][lane], high + (before + low < before ? 1u : 0u));
    atomicAdd(&all.counts[bin][lane], 1 + (is_true << 16));
  }

  /// Adds what was tallied to what follows the state, by all threads.
  __device__ void flush() const {
    __syncthreads();
    const Tallies& all = tallies();
    const auto cells = static_cast<int>(has_histogram_ ? binary_histogram_doubles(options_) : 0);
    for (int i = static_cast<int>(threadIdx.x); i < cells; i += kThreads)
      if (all.histogram[i] != 0)
        atomicAdd(&tail_.histograms[i], static_cast<double>(all.histogram[i]));
    const int bins = has_calibration_ ? options_.calibration_bins : 0;
    for (int bin = static_cast<int>(threadIdx.x / 32); bin < bins; bin += kWarps) {
      if (has_weights_)
        flush_sums(bin);
      else
        flush_counts(bin);
    }
    __syncthreads();
  }

 private:
  /// By a warp.
  __device__ void flush_sums(int bin) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int i = 0; i < kCalibrationSums; ++i) {
      const double sum = merge_warp(Merge::kSum, tallies().sums[bin][i][lane]);
      if (lane == 0 && sum != 0) atomicAdd(&tail_.calibration[kCalibrationSums * bin + i], sum);
    }
  }
  __device__ void flush_counts(int bin) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const Tallies& all = tallies();
    const unsigned count = merge_warp(Merge::kSum, all.counts[bin][lane] & 0xFFFFu);
    const unsigned true_count = merge_warp(Merge::kSum, all.counts[bin][lane] >> 16);
    const U64 low = merge_warp(Merge::kSum, static_cast<U64>(all.low[bin][lane]));
    const U64 high = merge_warp(Merge::kSum, static_cast<U64>(all.high[bin][lane]));
    if (lane != 0 || count == 0) return;
    double* const sums = tail_.calibration + kCalibrationSums * bin;
    atomicAdd(&sums[0], static_cast<double>(count));
    if (true_count != 0) atomicAdd(&sums[2], static_cast<double>(true_count));
    atomicAdd(&scratch_.probabilities[bin][0], low);
    atomicAdd(&scratch_.probabilities[bin][1], high);
  }

  const BinaryOptions& options_;
  Scratch& scratch_;
  const BinaryTail tail_;
  const bool has_weights_, has_histogram_, has_calibration_;
};

/// Labels that are a row each, from the element `first` to `end`, whatever they are; with
/// `only_others` no fours that are plain.
__device__ void add_labels(const LabelsParameters& p, const LabelTally& tally, I64 first, I64 end,
                           bool only_others, BlockTotals& found) {
  for_each_four<kBinaryOperands>(
      p.batch, first, end, [&](int count, const double (&fours)[kBinaryOperands][4]) {
        bool plain = only_others;
#pragma unroll
        for (int k = 0; k < 4; ++k)
          plain = plain && fabs(fours[kScore][k]) < kLogitRange &&
                  // Minus zero is not plain.
                  (__double_as_longlong(fours[kLabel][k]) == 0 || fours[kLabel][k] == 1);
        if (plain) return;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (k >= count) break;
          const double weight = fours[kLabelWeight][k];
          const LabelScore label =
              score_label(p.options, fours[kScore][k], fours[kLabel][k], weight, found);
          if (!label.counts) continue;
          const int outcome = tally.add(label, weight, 0);
#pragma unroll
          for (int i = 0; i < kBinaryCounts; ++i) found.correct[i] += outcome == i ? weight : 0;
        }
      });
}

// --- labels that are a row each, by logits in a format, without weights ---

/// The bits of a number that is 1, in its format.
__device__ U64 one_of(Format format) {
  return format == kFloat64    ? 0x3FF0000000000000u
         : format == kFloat32  ? 0x3F800000u
         : format == kFloat16  ? 0x3C00u
         : format == kBfloat16 ? 0x3F80u
                               : 1u;
}

/// 1 over a number that is at least 1, to the last bit or two.
__device__ double inverse(double x) {
#if defined(__CUDA_ARCH__)
  double guess;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(guess) : "d"(x));
  const double error = fma(-x, guess, 1.0);  // 2^-20 and less, so its cube is beyond a double
  return fma(guess, fma(error, error, error), guess);
#else
  return 1 / x;
#endif
}

/// The series of the exponential from the sixth term down. Not const: a constant in memory is an
/// operand, those in the code would be moved to registers first.
__constant__ double kExpTerms[] = {1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1, 1};

/// The probability of a logit that is below kLogitRange in size, of which a multiple of 1/32 is
/// near.
template <typename Number>
__device__ double probability_near(Number logit, const double* exps) {
  const auto nearest = static_cast<float>(logit) * 32.0f + 12582912.0f;  // 1.5 * 2^23: it rounds
  const int place = __float_as_int(nearest) - 0x4B400000 + 512;
  const Number rest = logit - static_cast<Number>(nearest - 12582912.0f) * Number{0.03125};
  const double x = -static_cast<double>(rest);  // at most 1/64
  double exp = kExpTerms[0];
#pragma unroll
  for (int i = 1; i < 7; ++i) exp = exp * x + kExpTerms[i];
  return inverse(exps[place] * exp + 1.0);
}

/// The threshold of which a number of a format is greater where it is greater than `threshold`.
__device__ double threshold_of(double, double threshold) { return threshold; }
__device__ float threshold_of(float, double threshold) {
  const auto nearest = static_cast<float>(threshold);
  return static_cast<double>(nearest) > threshold ? next_below(nearest) : nearest;
}

/// Adds the plain labels of the fours from `begin` to `end`, where all of a four are. False where
/// there are others.
template <Format kFormat, bool kBytes>
__device__ bool add_plain_labels(const LabelsParameters& p, I64 begin, I64 end,
                                 BlockTotals& found) {
  using Number = typename Numbers<kFormat>::Real;
  using Scores = Four<typename Numbers<kFormat>::Stored>;
  constexpr int kAtOnce = sizeof(Number) == 8 || !kBytes ? 1 : 2;  // each takes many registers
  const BinaryOptions& options = p.options;
  const Operand& scores = p.batch.operands[kScore];
  const Operand& targets = p.batch.operands[kLabel];
  const I64 step = static_cast<I64>(gridDim.x) * kThreads;
  const U64 one = one_of(targets.format);
  const Number threshold = threshold_of(Number(), options.threshold);
  const double per_logit = options.bins / (2 * kLogitRange);
  Tallies& all = tallies();
  unsigned count = 0, true_count = 0, predicted_count = 0, both_count = 0;
  struct Labels {
    Scores scores;
    Four<unsigned char> bytes;  // or
    U64 bits[4];
  };
  bool others = false;
  for (I64 at = begin + first_four(); at < end; at += kAtOnce * step) {
    Labels loaded[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (at + k * step < end) {
        loaded[k].scores = static_cast<const Scores*>(scores.data)[at + k * step];
        if constexpr (kBytes)
          loaded[k].bytes = static_cast<const Four<unsigned char>*>(targets.data)[at + k * step];
        else
          load_four(targets, at + k * step, loaded[k].bits);
      }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (at + k * step >= end) break;
      const Labels& four = loaded[k];
      Number logits[4];
      unsigned is_true[4];
      bool plain = true;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        logits[j] = Numbers<kFormat>::real(four.scores.of[j]);
        plain &= fabs(logits[j]) < Number{kLogitRange};
        is_true[j] = kBytes ? four.bytes.of[j] : four.bits[j] == one ? 1 : 0;
        plain &= kBytes ? is_true[j] <= 1 : four.bits[j] == one || four.bits[j] == 0;
      }
      if (!plain) {
        others = true;
        continue;
      }
      count += 4;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const unsigned predicted = logits[j] > threshold ? 1 : 0;
        true_count += is_true[j];
        predicted_count += predicted;
        both_count += predicted & is_true[j];
        // As bin_of_logit, but for what lies beyond the range.
        const auto bin =
            static_cast<int>((static_cast<double>(logits[j]) + kLogitRange) * per_logit);
        atomicAdd(&all.histogram[2 * bin + static_cast<int>(is_true[j])], 1u);
        if (options.calibration_bins == 0) continue;
        const double probability = probability_near(logits[j], all.exps);
        LabelTally::add_probability(static_cast<int>(probability * options.calibration_bins),
                                    is_true[j], probability);
      }
    }
  }
  // True positives, false positives, false and true negatives.
  found.correct[0] += both_count;
  found.correct[1] += predicted_count - both_count;
  found.correct[2] += true_count - both_count;
  found.correct[3] += count - predicted_count - (true_count - both_count);
  found.count += count;
  found.weight += count;
  return !others;
}

/// Whether labels are what `add_plain_labels` takes.
__device__ bool are_plain(const LabelsParameters& p, const LabelTally& tally) {
  const BinaryOptions& options = p.options;
  const Format format = p.batch.operands[kScore].format;
  return format >= kFloat64 && format <= kBfloat16 && options.labels == 0 &&
         options.from_logits != 0 && tally.is_complete() && options.ignore_index != 0 &&
         options.ignore_index != 1 && is_packed(p.batch);
}

// --- all others ---

/// Rows of several labels, each by a warp, from the row `first` to `end`. A function of its own:
/// the loops over labels that are a row each do without its registers.
__device__ __noinline__ void add_label_rows(const LabelsParameters& p, const LabelTally& tally,
                                            I64 first, I64 end, BlockTotals& found) {
  const I64 labels = p.options.labels;
  const auto lane = static_cast<I64>(threadIdx.x % 32);
  const I64 step = static_cast<I64>(gridDim.x) * kWarps;
  double outcomes[kBinaryCounts] = {};  // of the lane's label, where a row has no more than lanes
  for (I64 row = first + static_cast<I64>(blockIdx.x) * kWarps + threadIdx.x / 32; row < end;
       row += step) {
    for (I64 which = lane; which < labels; which += 32) {
      const ElementOffsets at = element_offsets<kBinaryOperands>(p.batch, row * labels + which);
      const double weight = load_operand(p.batch, kLabelWeight, at, 1);
      const LabelScore label = score_label(p.options, load_operand(p.batch, kScore, at, 0),
                                           load_operand(p.batch, kLabel, at, 0), weight, found);
      if (!label.counts) continue;
      const int outcome = tally.add(label, weight, which);
      if (labels > 32) {
        atomicAdd(&tally.tail().counts[which * kBinaryCounts + outcome], weight);
      } else {
#pragma unroll
        for (int i = 0; i < kBinaryCounts; ++i) outcomes[i] += outcome == i ? weight : 0;
      }
    }
  }
  if (labels > 32 || lane >= labels) return;
  for (int i = 0; i < kBinaryCounts; ++i)
    if (outcomes[i] != 0) atomicAdd(&tally.tail().counts[lane * kBinaryCounts + i], outcomes[i]);
}

__device__ void update_labels(const LabelsParameters& p) {
  const LabelTally tally(p);
  BlockTotals found{};
  const bool plain = are_plain(p, tally);
  if (plain)
    for (int i = static_cast<int>(threadIdx.x); i < kExps; i += kThreads)
      tallies().exps[i] = exp(kLogitRange - i / 32.0);
  const bool bytes = p.batch.operands[kLabel].format == kUint8;
  const I64 elements = p.batch.elements;
  const I64 whole = plain ? elements - elements % 4 : 0;
  // So many rows or elements at a time that their counts fit.
  const I64 labels = p.options.labels;
  const I64 rows = labels == 0 ? elements : elements / labels;
  const I64 of_thread = kLabelsOfThread / (labels == 0 ? 1 : (labels + 31) / 32);
  const I64 part = gridDim.x * (labels == 0 ? kThreads : kWarps) * (of_thread > 0 ? of_thread : 1);
  for (I64 begin = 0; begin < rows || begin == 0; begin += part) {
    if (begin != 0) tally.flush();
    tally.clear();
    const I64 end = rows - begin < part ? rows : begin + part;
    if (labels != 0) {
      add_label_rows(p, tally, begin, end, found);
      continue;
    }
    const I64 of_fours = plain ? (end < whole ? end : whole) : begin;
    bool all = true;
    if (plain)
      all = with_format(p.batch.operands[kScore].format, [&](auto of) {
        constexpr Format kFormat = decltype(of)::kIs;
        return bytes ? add_plain_labels<kFormat, true>(p, begin / 4, of_fours / 4, found)
                     : add_plain_labels<kFormat, false>(p, begin / 4, of_fours / 4, found);
      });
    // What this thread has left out, and what no thread has taken.
#pragma unroll 1
    for (int pass = all ? 1 : 0; pass < 2; ++pass)
      add_labels(p, tally, pass == 0 ? begin : of_fours, pass == 0 ? of_fours : end, pass == 0,
                 found);
  }
  tally.flush();
  finish_elements(p, found, 0);
}

}  // namespace
}  // namespace pig::metrics
