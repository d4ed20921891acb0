// SPDX-License-Identifier: Apache-2.0
//
// Updates whose tensors have one shape, each element of which stands for itself: running values,
// rows without logits, regression, and labels that are true or false.
#pragma once

#include "metrics/binary_totals.h"
#include "metrics/element_batch.h"
#include "metrics/kernel_finish.cuh"
#include "metrics/regression_totals.h"
#include "metrics/row_values.h"
#include "metrics/value_totals.h"

namespace pig::metrics {
namespace {

/// The shared memory in which blocks merge what they have found. No kernel needs two of these.
struct Shared {
  static __device__ BlockTotals* row_totals() {
    __shared__ BlockTotals warps[kWarps];
    return warps;
  }
  static __device__ Totals& all_row_totals() {
    __shared__ Totals totals;
    return totals;
  }
  static __device__ ValueTotalsOf<unsigned>* value_totals() {
    __shared__ ValueTotalsOf<unsigned> warps[kWarps];
    return warps;
  }
  static __device__ ValueTotals& all_value_totals() {
    __shared__ ValueTotals totals;
    return totals;
  }
  static __device__ RegressionTotalsOf<unsigned>* pair_totals() {
    __shared__ RegressionTotalsOf<unsigned> warps[kWarps];
    return warps;
  }
  static __device__ RegressionTotals& all_pair_totals() {
    __shared__ RegressionTotals totals;
    return totals;
  }
};

/// Calls `add(element, offsets, bits)` for this thread's share of the elements, with their numbers
/// as they are stored. Several are loaded at a time, so that none waits for the one before.
template <int kOperands, typename Add>
__device__ void for_each_element(const ElementBatch& batch, Add add) {
  const I64 step = static_cast<I64>(gridDim.x) * kThreads;
  const I64 first = static_cast<I64>(blockIdx.x) * kThreads + threadIdx.x;
  for (I64 begin = first; begin < batch.elements; begin += step * kElementsAtOnce) {
    U64 bits[kElementsAtOnce][kOperands] = {};
#pragma unroll
    for (int k = 0; k < kElementsAtOnce; ++k) {
      const I64 element = begin + k * step;
      if (element >= batch.elements) break;
      const ElementOffsets offsets = element_offsets(batch, element);
#pragma unroll
      for (int i = 0; i < kOperands; ++i)
        if (batch.operands[i].data != nullptr)
          bits[k][i] = load_bits(batch.operands[i].data, batch.operands[i].format, offsets.of[i]);
    }
#pragma unroll
    for (int k = 0; k < kElementsAtOnce; ++k)
      if (begin + k * step < batch.elements) add(bits[k]);
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
__device__ void finish_elements(const typename Kind::Parameters& p, typename Kind::OfBlock& found,
                                typename Kind::OfBlock* warps, typename Kind::OfLaunch& all,
                                double shift) {
  merge_threads<Kind>(p, found);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = found;
  finish<Kind>(p, warps, all, shift);
}

__device__ double infinity() { return __longlong_as_double(0x7FF0000000000000LL); }

// --- running values ---

struct Values {
  using Parameters = ValuesParameters;
  using OfBlock = ValueTotalsOf<unsigned>;
  using OfLaunch = ValueTotals;
  static constexpr bool kIsUpdate = false;
  static constexpr int kCounts = 2;
  static constexpr int kReals = 6;
  static __device__ bool is_used(const Parameters&, int) { return true; }
  static __device__ Merge merge_of(int real) {
    return real < 4 ? Merge::kSum : real == 4 ? Merge::kLeast : Merge::kGreatest;
  }
  static __device__ void fold(const Parameters& p, const OfLaunch& found, double shift) {
    fold_values(found, shift, p.ema, p.launch.state->scalars[p.slot]);
  }
};

__device__ void update_values(const ValuesParameters& p) {
  const double shift = shift_of(p.batch, kValue, kValueWeight);
  ValueTotalsOf<unsigned> found{};
  for_each_element<kValueOperands>(p.batch, [&](const U64(&bits)[kValueOperands]) {
    add_value(number_of(p.batch, bits, kValue, 0), number_of(p.batch, bits, kValueWeight, 1), shift,
              found);
  });
  if (found.count == 0) {
    found.min = infinity();
    found.max = -infinity();
  }
  finish_elements<Values>(p, found, Shared::value_totals(), Shared::all_value_totals(), shift);
}

// --- rows without logits ---

struct Rows {
  using Parameters = RowsParameters;
  using OfBlock = BlockTotals;
  using OfLaunch = Totals;
  static constexpr bool kIsUpdate = true;
  static constexpr int kCounts = 5;
  static constexpr int kReals = 1 + kMaxTopk + 6;
  static __device__ bool is_used(const Parameters& p, int real) {
    if (real == 0) return true;
    if (real <= kMaxTopk) return p.batch.topk[real - 1] != 0;
    if (real <= kMaxTopk + 2) return p.batch.loss_kind == kLossPerRow;
    return real > kMaxTopk + 4 && p.rows.operands[kRowEntropy].data != nullptr;
  }
  static constexpr __device__ Merge merge_of(int) { return Merge::kSum; }
  static __device__ void fold(const Parameters& p, const OfLaunch& found, double) {
    fold_update(p.batch, found, *p.launch.state);
  }
};

__device__ void update_rows(const RowsParameters& p) {
  BlockTotals found{};
  for_each_element<kRowOperands>(p.rows, [&](const U64(&bits)[kRowOperands]) {
    const RowValues row{
        number_of(p.rows, bits, kRowLoss, 0),   number_of(p.rows, bits, kRowCorrect, 0),
        number_of(p.rows, bits, kRowRank, 0),   number_of(p.rows, bits, kRowEntropy, 0),
        number_of(p.rows, bits, kRowWeight, 1), number_of(p.rows, bits, kRowMask, 1)};
    add_row_values(p.batch, p.rows, row, found);
  });
  finish_elements<Rows>(p, found, Shared::row_totals(), Shared::all_row_totals(), 0);
}

// --- regression ---

struct Pairs {
  using Parameters = PairsParameters;
  using OfBlock = RegressionTotalsOf<unsigned>;
  using OfLaunch = RegressionTotals;
  static constexpr bool kIsUpdate = true;
  static constexpr int kCounts = 4;
  static constexpr int kReals = 10;
  static __device__ bool is_used(const Parameters&, int) { return true; }
  static __device__ Merge merge_of(int real) {
    return real < 6 ? Merge::kSum : real % 2 == 0 ? Merge::kLeast : Merge::kGreatest;
  }
  static __device__ void fold(const Parameters& p, const OfLaunch& found, double shift) {
    fold_regression(found, shift, p.ema, *p.launch.state);
  }
};

__device__ void update_pairs(const PairsParameters& p) {
  const double shift = shift_of(p.batch, kTarget, kPairWeight);
  RegressionTotalsOf<unsigned> found{};
  for_each_element<kRegressionOperands>(p.batch, [&](const U64(&bits)[kRegressionOperands]) {
    add_pair(number_of(p.batch, bits, kPrediction, 0), number_of(p.batch, bits, kTarget, 0),
             number_of(p.batch, bits, kPairWeight, 1), shift, found);
  });
  if (found.count == 0) {
    found.min = found.min_target = infinity();
    found.max = found.max_target = -infinity();
  }
  finish_elements<Pairs>(p, found, Shared::pair_totals(), Shared::all_pair_totals(), shift);
}

// --- labels ---

/// Where rows are one label each, the four outcomes are part of what a launch has found: they are
/// few, and each label adds to one of them.
constexpr int kFirstOutcome = 2;

struct Labels {
  using Parameters = LabelsParameters;
  using OfBlock = BlockTotals;
  using OfLaunch = Totals;
  static constexpr bool kIsUpdate = true;
  static constexpr int kCounts = 5;
  static constexpr int kReals = 1 + kMaxTopk + 6;
  static __device__ bool is_used(const Parameters& p, int real) {
    if (real == 0) return true;
    const int sum = real - 1;
    return p.options.labels != 0 ? sum == kExactWeight || sum == kExactRows
                                 : sum >= kFirstOutcome && sum < kFirstOutcome + kBinaryCounts;
  }
  static constexpr __device__ Merge merge_of(int) { return Merge::kSum; }
  static __device__ void fold(const Parameters& p, const OfLaunch& found, double) {
    fold_binary(found, *p.launch.state);
    if (p.options.labels != 0) return;
    double* const counts = tail_of(p).counts;
    for (int i = 0; i < kBinaryCounts; ++i) counts[i] += found.correct[kFirstOutcome + i];
  }
  static __device__ BinaryTail tail_of(const Parameters& p) {
    return binary_tail(p.options, reinterpret_cast<double*>(p.launch.state + 1));
  }
};

/// Adds a label that counts to the tail.
__device__ LabelPlaces add_label(const LabelsParameters& p, const BinaryTail& tail,
                                 const LabelScore& label, double weight, I64 which) {
  const LabelPlaces places = places_of(p.options, label, which);
  atomicAdd(&tail.histograms[places.histogram], weight);
  if (p.options.calibration_bins == 0) return places;
  double* const bin = tail.calibration + places.calibration;
  atomicAdd(&bin[0], weight);
  atomicAdd(&bin[1], weight * label.probability);
  if (label.is_true) atomicAdd(&bin[2], weight);
  return places;
}

__device__ LabelScore score_of(const LabelsParameters& p, double score, double target,
                               double weight, BlockTotals& found) {
  return score_label(p.options, score, target, weight, found);
}

/// Rows of several labels, each by a warp.
__device__ void add_label_rows(const LabelsParameters& p, const BinaryTail& tail,
                               BlockTotals& found) {
  const I64 labels = p.options.labels;
  const I64 rows = p.batch.elements / labels;
  const auto lane = static_cast<I64>(threadIdx.x % 32);
  const I64 step = static_cast<I64>(gridDim.x) * kWarps;
  for (I64 row = static_cast<I64>(blockIdx.x) * kWarps + threadIdx.x / 32; row < rows;
       row += step) {
    bool wrong = false;
    I64 last = -1;  // the last label that counts has the row's weight
    double weight = 0;
    for (I64 which = lane; which < labels; which += 32) {
      const ElementOffsets at = element_offsets(p.batch, row * labels + which);
      const double own_weight = load_operand(p.batch, kLabelWeight, at, 1);
      const LabelScore label = score_of(p, load_operand(p.batch, kScore, at, 0),
                                        load_operand(p.batch, kLabel, at, 0), own_weight, found);
      if (!label.counts) continue;
      const LabelPlaces places = add_label(p, tail, label, own_weight, which);
      atomicAdd(&tail.counts[places.count], own_weight);
      wrong |= label.predicted != label.is_true;
      last = which;
      weight = own_weight;
    }
    const bool is_exact = !__any_sync(0xFFFFFFFFu, wrong);
    for (int step_of_lanes = 16; step_of_lanes > 0; step_of_lanes /= 2) {
      const I64 other = __shfl_xor_sync(0xFFFFFFFFu, last, step_of_lanes);
      const double other_weight = __shfl_xor_sync(0xFFFFFFFFu, weight, step_of_lanes);
      if (other > last) {
        last = other;
        weight = other_weight;
      }
    }
    if (lane != 0 || last < 0) continue;
    found.correct[kExactRows] += weight;
    if (is_exact) found.correct[kExactWeight] += weight;
  }
}

__device__ void update_labels(const LabelsParameters& p) {
  const BinaryTail tail = Labels::tail_of(p);
  BlockTotals found{};
  if (p.options.labels != 0) {
    add_label_rows(p, tail, found);
  } else {
    for_each_element<kBinaryOperands>(p.batch, [&](const U64(&bits)[kBinaryOperands]) {
      const double weight = number_of(p.batch, bits, kLabelWeight, 1);
      const LabelScore label = score_of(p, number_of(p.batch, bits, kScore, 0),
                                        number_of(p.batch, bits, kLabel, 0), weight, found);
      if (!label.counts) return;
      const LabelPlaces places = add_label(p, tail, label, weight, 0);
#pragma unroll
      for (int i = 0; i < kBinaryCounts; ++i)
        if (places.count == i) found.correct[kFirstOutcome + i] += weight;
    });
  }
  finish_elements<Labels>(p, found, Shared::row_totals(), Shared::all_row_totals(), 0);
}

}  // namespace
}  // namespace pig::metrics
