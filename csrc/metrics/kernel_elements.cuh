// SPDX-License-Identifier: Apache-2.0
//
// Updates whose tensors have one shape, each element of which stands for itself: running values,
// rows without logits, regression, and labels that are true or false.
#pragma once

#include "metrics/kernel_finish.cuh"

namespace pig::metrics {
namespace {

/// Calls `add(bits, is_there)` for this thread's share of the elements, with their numbers as they
/// are stored. The lanes of a warp call it together, also those that have no element any more.
/// Several are loaded at a time, so that none waits for the one before.
template <int kOperands, typename Add>
__device__ void for_each_element(const ElementBatch& batch, Add add) {
  const I64 step = static_cast<I64>(gridDim.x) * kThreads;
  const auto lane = static_cast<I64>(threadIdx.x % 32);
  const I64 first = static_cast<I64>(blockIdx.x) * kThreads + threadIdx.x - lane;
  for (I64 begin = first; begin < batch.elements; begin += step * kElementsAtOnce) {
    U64 bits[kElementsAtOnce][kOperands] = {};
#pragma unroll
    for (int k = 0; k < kElementsAtOnce; ++k) {
      const I64 element = begin + lane + k * step;
      if (element >= batch.elements) break;
      const ElementOffsets offsets = element_offsets(batch, element);
#pragma unroll
      for (int i = 0; i < kOperands; ++i)
        if (batch.operands[i].data != nullptr)
          bits[k][i] = load_bits(batch.operands[i].data, batch.operands[i].format, offsets.of[i]);
    }
#pragma unroll
    for (int k = 0; k < kElementsAtOnce; ++k)
      if (begin + k * step < batch.elements) add(bits[k], begin + lane + k * step < batch.elements);
  }
}

/// A number as `for_each_element` has loaded it.
template <int kOperands>
__device__ double number_of(const ElementBatch& batch, const U64 (&bits)[kOperands], int operand,
                            double otherwise) {
  const Operand& of = batch.operands[operand];
  return of.data == nullptr ? otherwise : real_of_bits(bits[operand], of.format);
}

/// Merges what the threads have found, and hands it on.
template <typename Kind>
__device__ void finish_elements(const Kind& p, OfBlock<Kind>& found, double shift) {
  merge_threads<Kind>(p, found);
  if (threadIdx.x % 32 == 0) shared<Kind>().warps[threadIdx.x / 32] = found;
  finish<Kind>(p, shift);
}

/// The same as `shift_of`, by all threads; each warp looks for itself. Mostly the first element
/// will do, and is the same word for all. Where that is padding, each lane looks at another one.
template <typename Kind>
__device__ double find_shift(const Kind& p) {
  constexpr int operand = Kind::kShifted, weight_operand = Kind::kWeight;
  const ElementBatch& batch = p.batch;
  double value = 0;
  if (operand < 0) return 0;
  if (look_for_shift(batch, operand, weight_operand, 0, value)) return value;
  const int lane = threadIdx.x % 32;
  for (I64 look = 0; look < kLooksForShift && look < batch.elements; look += 32) {
    int found = look_for_shift(batch, operand, weight_operand, look + lane, value) ? lane : 32;
    for (int step = 16; step > 0; step /= 2) {
      const int other = __shfl_xor_sync(0xFFFFFFFFu, found, step);
      found = other < found ? other : found;
    }
    if (found < 32) return __shfl_sync(0xFFFFFFFFu, value, found);
  }
  return 0;
}

template <typename Kind>
__device__ void update_elements(const Kind& p) {
  constexpr int kOperands = Kind::kOperands;
  const double shift = find_shift(p);
  OfBlock<Kind> found = OfBlock<Kind>::none();
  for_each_element<kOperands>(p.batch, [&](const U64(&bits)[kOperands], bool is_there) {
    if (!is_there) return;
    double numbers[kOperands];
#pragma unroll
    for (int i = 0; i < kOperands; ++i) numbers[i] = number_of(p.batch, bits, i, 1);
    p.add(numbers, shift, found);
  });
  finish_elements(p, found, shift);
}

// --- labels ---

/// The bins of the calibration, of the labels that one warp reads. There are few of them, and most
/// labels are in the outer ones: atomic operations of all labels would wait for each other. So each
/// lane has a bin of its own, and takes what the others have found for it.
class CalibrationOfWarp {
 public:
  __device__ explicit CalibrationOfWarp(int bins) : bins_(bins) {}

  /// By all lanes together. Without a label that counts, `bin` is negative.
  __device__ void add(const BinaryTail& tail, int bin, const LabelScore& label, double weight) {
    if (bins_ == 0) return;
    const double product = weight * label.probability;
    if (bins_ > 32) {
      if (bin < 0) return;
      double* const sums = tail.calibration + kCalibrationSums * bin;
      atomicAdd(&sums[0], weight);
      atomicAdd(&sums[1], product);
      if (label.is_true) atomicAdd(&sums[2], weight);
      return;
    }
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int own = bin < 0 ? -1 : 2 * bin + (label.is_true ? 1 : 0);
#pragma unroll 4
    for (int from = 0; from < 32; ++from) {
      const int found = __shfl_sync(0xFFFFFFFFu, own, from);
      const double its_weight = __shfl_sync(0xFFFFFFFFu, weight, from);
      const double its_product = __shfl_sync(0xFFFFFFFFu, product, from);
      const bool is_mine = found >= 0 && found / 2 == lane;
      weight_ += is_mine ? its_weight : 0;
      probability_ += is_mine ? its_product : 0;
      true_ += is_mine && found % 2 != 0 ? its_weight : 0;
    }
  }

  __device__ void flush(const BinaryTail& tail) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (bins_ > 32 || lane >= bins_ || weight_ == 0) return;
    double* const sums = tail.calibration + kCalibrationSums * lane;
    atomicAdd(&sums[0], weight_);
    atomicAdd(&sums[1], probability_);
    atomicAdd(&sums[2], true_);
  }

 private:
  const int bins_;
  double weight_ = 0;
  double probability_ = 0;
  double true_ = 0;
};

/// Adds a label to the tail, by all lanes of a warp together. Returns its outcome; -1 where it does
/// not count.
__device__ int add_label(const LabelsParameters& p, const BinaryTail& tail, const LabelScore& label,
                         double weight, I64 which, CalibrationOfWarp& calibration) {
  int outcome = -1;
  int bin = -1;
  if (label.counts) {
    const LabelPlaces places = places_of(p.options, label, which);
    atomicAdd(&tail.histograms[places.histogram], weight);
    outcome = static_cast<int>(places.count - which * kBinaryCounts);
    bin = static_cast<int>(places.calibration / kCalibrationSums);
  }
  calibration.add(tail, bin, label, weight);
  return outcome;
}

/// Rows of several labels, each by a warp.
__device__ void add_label_rows(const LabelsParameters& p, const BinaryTail& tail,
                               CalibrationOfWarp& calibration, BlockTotals& found) {
  const I64 labels = p.options.labels;
  const I64 rows = p.batch.elements / labels;
  const auto lane = static_cast<I64>(threadIdx.x % 32);
  const I64 step = static_cast<I64>(gridDim.x) * kWarps;
  double outcomes[kBinaryCounts] = {};  // of the lane's label, where a row has no more than lanes
  for (I64 row = static_cast<I64>(blockIdx.x) * kWarps + threadIdx.x / 32; row < rows;
       row += step) {
    bool wrong = false;
    I64 last = -1;  // the last label that counts has the row's weight
    double weight = 0;
    for (I64 begin = 0; begin < labels; begin += 32) {
      const I64 which = begin + lane;
      LabelScore label{};
      double own_weight = 0;
      if (which < labels) {
        const ElementOffsets at = element_offsets(p.batch, row * labels + which);
        own_weight = load_operand(p.batch, kLabelWeight, at, 1);
        label = score_label(p.options, load_operand(p.batch, kScore, at, 0),
                            load_operand(p.batch, kLabel, at, 0), own_weight, found);
      }
      const int outcome = add_label(p, tail, label, own_weight, which, calibration);
      if (outcome < 0) continue;
      if (labels > 32) {
        atomicAdd(&tail.counts[which * kBinaryCounts + outcome], own_weight);
      } else {
#pragma unroll
        for (int i = 0; i < kBinaryCounts; ++i) outcomes[i] += outcome == i ? own_weight : 0;
      }
      wrong |= label.predicted != label.is_true;
      last = which;
      weight = own_weight;
    }
    const bool is_exact = !__any_sync(0xFFFFFFFFu, wrong);
    for (int distance = 16; distance > 0; distance /= 2) {
      const I64 other = __shfl_xor_sync(0xFFFFFFFFu, last, distance);
      const double other_weight = __shfl_xor_sync(0xFFFFFFFFu, weight, distance);
      if (other > last) {
        last = other;
        weight = other_weight;
      }
    }
    if (lane != 0 || last < 0) continue;
    found.correct[kExactRows] += weight;
    if (is_exact) found.correct[kExactWeight] += weight;
  }
  if (labels > 32 || lane >= labels) return;
  for (int i = 0; i < kBinaryCounts; ++i)
    if (outcomes[i] != 0) atomicAdd(&tail.counts[lane * kBinaryCounts + i], outcomes[i]);
}

__device__ void update_labels(const LabelsParameters& p) {
  const BinaryTail tail = binary_tail(p.options, reinterpret_cast<double*>(p.launch.state + 1));
  BlockTotals found{};
  CalibrationOfWarp calibration(p.options.calibration_bins);
  if (p.options.labels != 0) {
    add_label_rows(p, tail, calibration, found);
  } else {
    for_each_element<kBinaryOperands>(
        p.batch, [&](const U64(&bits)[kBinaryOperands], bool is_there) {
          LabelScore label{};
          const double weight = number_of(p.batch, bits, kLabelWeight, 1);
          if (is_there)
            label = score_label(p.options, number_of(p.batch, bits, kScore, 0),
                                number_of(p.batch, bits, kLabel, 0), weight, found);
          const int outcome = add_label(p, tail, label, weight, 0, calibration);
#pragma unroll
          for (int i = 0; i < kBinaryCounts; ++i)
            found.correct[kFirstOutcome + i] += outcome == i ? weight : 0;
        });
  }
  calibration.flush(tail);
  finish_elements(p, found, 0);
}

}  // namespace
}  // namespace pig::metrics
