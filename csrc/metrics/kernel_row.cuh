// SPDX-License-Identifier: Apache-2.0
//
// One pass over a row of logits, by one thread, a warp or a block: the rank of the target, whether
// all are finite, and where it is asked for, what the loss is made of and which is the greatest.
#pragma once

#include "metrics/kernel_finish.cuh"
#include "metrics/kernel_numbers.cuh"
#include "metrics/kernel_ring.cuh"

namespace pig::metrics {
namespace {

struct Best {
  double value;
  I64 index;  ///< negative: none
};

/// Whether `a` stands before `b` in the order of torch.argmax.
__device__ bool stands_before(const Best& a, const Best& b) {
  if (a.index < 0 || b.index < 0) return b.index < 0;
  const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
  if (a_is_nan != b_is_nan) return a_is_nan;
  if (!a_is_nan && a.value != b.value) return a.value > b.value;
  return a.index < b.index;
}

/// Sums of exps: relative to a logit that is not much less than the greatest, so that nothing
/// overflows, and without the target, which may be nearly all of them: the loss is then what the
/// others are.
struct ExpSums {
  double reference;
  double greatest;
  double exp_sum;       ///< of exp(x - reference)
  double shift_sum;     ///< of exp(x - reference) * (x - reference)
  double weighted_sum;  ///< of class weight * x, of all logits, where labels are smoothed
};

__device__ void rescale(ExpSums& sums, double reference) {
  if (sums.reference == reference) return;
  const double shift = sums.reference - reference;
  const double factor = power_of(shift);
  // Where there is nothing yet, the reference is the lowest number.
  sums.shift_sum = factor == 0 ? 0 : (sums.shift_sum + sums.exp_sum * shift) * factor;
  sums.exp_sum *= factor;
  sums.reference = reference;
}

/// What a row's sums are with its target.
__device__ RowSums with_target(const ExpSums& sums, double target, double class_weight_sum) {
  const double own_shift = target - sums.reference;
  const double own = own_shift == 0 ? 1 : power_of(own_shift);
  const double exp_sum = sums.exp_sum + own;
  const double shift_sum = sums.shift_sum + (own == 0 ? 0 : own * own_shift);
  RowSums row;
  row.max = greater(sums.greatest, target);
  row.target = target;
  const double shift = sums.reference - row.max;
  const double factor = shift == 0 ? 1 : power_of(shift);
  row.exp_sum = exp_sum * factor;
  row.shift_sum = (shift_sum + exp_sum * shift) * factor;
  row.weighted_sum = sums.weighted_sum - class_weight_sum * row.max;
  return row;
}

// --- the threads that share a row ---

struct OneThread {
  static constexpr int kSize = 1;
  __device__ int rank() const { return 0; }
  __device__ int index() const { return threadIdx.x; }
  __device__ void sum(int&, int&) const {}
  __device__ void sum(int&, int&, ExpSums&, bool) const {}
  __device__ Best best(const Best& own) const { return own; }
};

struct Warp {
  static constexpr int kSize = 32;
  __device__ int rank() const { return threadIdx.x % 32; }
  __device__ int index() const { return threadIdx.x / 32; }
  __device__ void sum(int& count, int& flags) const {
    for (int step = 16; step > 0; step /= 2) {
      count += __shfl_xor_sync(0xFFFFFFFFu, count, step);
      flags |= __shfl_xor_sync(0xFFFFFFFFu, flags, step);
    }
  }
  /// The sums also.
  __device__ void sum(int& count, int& flags, ExpSums& sums, bool weighted) const {
    sum(count, flags);
    double reference = sums.reference;
    for (int step = 16; step > 0; step /= 2) {
      reference = greater(reference, __shfl_xor_sync(0xFFFFFFFFu, reference, step));
      sums.greatest = greater(sums.greatest, __shfl_xor_sync(0xFFFFFFFFu, sums.greatest, step));
    }
    rescale(sums, reference);
    for (int step = 16; step > 0; step /= 2) {
      sums.exp_sum += __shfl_xor_sync(0xFFFFFFFFu, sums.exp_sum, step);
      sums.shift_sum += __shfl_xor_sync(0xFFFFFFFFu, sums.shift_sum, step);
    }
    if (!weighted) return;
    for (int step = 16; step > 0; step /= 2)
      sums.weighted_sum += __shfl_xor_sync(0xFFFFFFFFu, sums.weighted_sum, step);
  }
  __device__ Best best(Best own) const {
    for (int step = 16; step > 0; step /= 2) {
      const Best other{__shfl_xor_sync(0xFFFFFFFFu, own.value, step),
                       __shfl_xor_sync(0xFFFFFFFFu, own.index, step)};
      if (stands_before(other, own)) own = other;
    }
    return own;
  }
};

struct Block {
  static constexpr int kSize = kThreads;
  __device__ int rank() const { return threadIdx.x; }
  __device__ int index() const { return 0; }
  __device__ void sum(int& count, int& flags) const {
    Warp().sum(count, flags);
    sum_warps(count, flags, nullptr);
  }
  /// The sums only in the first thread.
  __device__ void sum(int& count, int& flags, ExpSums& sums, bool weighted) const {
    Warp().sum(count, flags, sums, weighted);
    sum_warps(count, flags, &sums);
  }
  __device__ Best best(Best own) const {
    __shared__ Best all[kWarps];
    own = Warp().best(own);
    __syncthreads();
    if (threadIdx.x % 32 == 0) all[threadIdx.x / 32] = own;
    __syncthreads();
    for (int i = 0; i < kWarps; ++i)
      if (stands_before(all[i], own)) own = all[i];
    return own;
  }

 private:
  __device__ static void sum_warps(int& count, int& flags, ExpSums* sums) {
    __shared__ int counts[kWarps];
    __shared__ int all_flags[kWarps];
    __shared__ ExpSums all_sums[kWarps];
    const unsigned warp = threadIdx.x / 32;
    __syncthreads();  // the row before has been read
    if (threadIdx.x % 32 == 0) {
      counts[warp] = count;
      all_flags[warp] = flags;
      if (sums != nullptr) all_sums[warp] = *sums;
    }
    __syncthreads();
    count = 0;
    for (int i = 0; i < kWarps; ++i) {
      count += counts[i];
      flags |= all_flags[i];
    }
    if (sums == nullptr || threadIdx.x != 0) return;
    for (int i = 1; i < kWarps; ++i) {
      ExpSums other = all_sums[i];
      const double reference = greater(sums->reference, other.reference);
      rescale(*sums, reference);
      rescale(other, reference);
      sums->greatest = greater(sums->greatest, other.greatest);
      sums->exp_sum += other.exp_sum;
      sums->shift_sum += other.shift_sum;
      sums->weighted_sum += other.weighted_sum;
    }
  }
};

// --- a row ---

/// From which rank on it does not matter how many stand before: the greatest k, or 1.
__device__ int enough_of(const Batch& batch) {
  I64 most = 1;
#pragma unroll
  for (int i = 0; i < kMaxTopk; ++i) most = batch.topk[i] > most ? batch.topk[i] : most;
  return most < (1 << 30) ? static_cast<int>(most) : 1 << 30;
}

/// What one thread finds in its share of a row.
///
/// kScores: also what the loss is made of. kFull: also the greatest logit, and the sums that
/// smoothed labels need, where the batch asks for them.
///
/// Most logits are finite, not the target's, and neither above what the sums can take nor among the
/// first: `take_usual` adds many at a time, each by a maximum, the exponent, its power, and what
/// they add to two sums. What is unlike them shows in the maximum, or makes a sum NaN.
template <typename Real, bool kScores, bool kFull>
struct RowScan {
  const Batch& batch;
  const I64 target;
  const Real own;    ///< the target's logit, not NaN
  const Real below;  ///< a logit before the target that is greater stands before it
  const int enough;
  int rank = 0;    ///< exact as long as it is below `enough`
  Real zeros = 0;  ///< stays 0 as long as all are finite
  Real reference;
  Real origin;  ///< the reference in the unit of exponents
  Real bound;   ///< usual logits are less
  Real greatest;
  Real power_sum = 0;
  Real power_rest = 0;    ///< what rounding took from it
  Real exponent_sum = 0;  ///< of each power times its exponent
  Real exponent_rest = 0;
  double weighted_sum = 0;
  Real best_value = 0;
  int best_index = -1;  ///< a confusion matrix has less than 2^31 classes

  __device__ RowScan(const Batch& of, I64 at, Real logit)
      : batch(of),
        target(at),
        own(logit),
        below(next_below(logit)),
        enough(enough_of(of)),
        greatest(logit) {
    refer_to(logit - logit == 0 ? logit : kLowest<Real>);
    limit();
  }

  /// Takes logits that are not the target's, or returns false, and then has taken none of them.
  template <int kCount>
  __device__ bool take_usual(const Real (&logits)[kCount]) {
    if constexpr (kFull) return false;
    Real top = logits[0];
#pragma unroll
    for (int k = 1; k < kCount; ++k) top = greater(top, logits[k]);
    if (!(top < bound)) return false;
    if constexpr (kScores) {
      if (!add_powers<false>(logits)) return false;
      greatest = greater(greatest, top);
      return true;
    }
    Real zero = 0;
#pragma unroll
    for (int k = 0; k < kCount; ++k) zero = fused(logits[k], 0, zero);
    return zero == 0;
  }

  /// Takes the logits from `base` on, whatever they are, in ascending order of the bases.
  template <int kCount>
  __device__ void take(I64 base, Real (&logits)[kCount]) {
    if constexpr (kFull) take_best_and_weighted(base, logits);
    const I64 place = target - base;
#pragma unroll
    for (int k = 0; k < kCount; ++k) zeros += logits[k] * 0;
    if (place >= 0 && place < kCount) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        if (k == place) logits[k] = -infinity_of(own);  // stands before nothing, and adds nothing
        rank += !(logits[k] <= (k < place ? below : own));
      }
    } else {
      const Real first = place > 0 ? below : own;
#pragma unroll
      for (int k = 0; k < kCount; ++k) rank += !(logits[k] <= first);  // true for a NaN
    }
    if constexpr (kScores) {
      Real top = logits[0];
#pragma unroll
      for (int k = 1; k < kCount; ++k) top = greater(top, logits[k]);
      greatest = greater(greatest, top);
      if (top - reference > kSlack) rescale_to(top);
      add_powers<true>(logits);
    }
    limit();
  }

  __device__ ExpSums exp_sums() const {
    return {
        base(), static_cast<double>(greatest),
        static_cast<double>(power_sum) + static_cast<double>(power_rest),
        (static_cast<double>(exponent_sum) + static_cast<double>(exponent_rest)) / kPerUnit<Real>,
        weighted_sum};
  }

 private:
  /// What sums lose to a reference that is too low are some digits.
  static constexpr Real kSlack = 8;

  /// Whether a logit is so far from 0 that in the unit of exponents it would be rounded too much.
  __device__ static bool is_huge(Real logit) {
    return sizeof(Real) == sizeof(float) && !(fabs(logit) < static_cast<Real>(1 << 20));
  }
  /// To what logit the powers are relative: what its rounded form in exponents stands for.
  __device__ double base() const {
    return is_huge(reference) ? static_cast<double>(reference)
                              : static_cast<double>(origin) / kPerUnit<Real>;
  }
  __device__ void refer_to(Real to) {
    reference = to;
    origin = is_huge(to) ? to : to * kPerUnit<Real>;
  }
  __device__ void limit() {
    bound = rank >= enough ? infinity_of(own) : below;
    if (kScores) bound = lesser(bound, reference + kSlack);
    if (kScores && is_huge(reference)) bound = -infinity_of(own);
  }
  __device__ void rescale_to(Real top) {
    const double before = base();
    refer_to(top);
    const auto shift = static_cast<Real>((before - base()) * kPerUnit<Real>);
    const Real factor = power_of(shift);
    exponent_sum = factor == 0 ? 0 : (exponent_sum + power_sum * shift) * factor;
    exponent_rest *= factor;
    power_sum *= factor;
    power_rest *= factor;
  }

  /// Rounds twice: one thread may have a whole row.
  __device__ static void add_twice(Real added, Real& to, Real& rest) {
    const Real sum = to + added;
    const Real part = sum - to;
    rest += (to - (sum - part)) + (added - part);
    to = sum;
  }

  /// With kAll whatever they are; otherwise false, and nothing is added, where one of them is not
  /// finite or too far away.
  template <bool kAll, int kCount>
  __device__ bool add_powers(const Real (&logits)[kCount]) {
    Real powers = 0, exponents = 0;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      Real exponent = kAll && is_huge(reference) ? (logits[k] - reference) * kPerUnit<Real>
                                                 : fused(logits[k], kPerUnit<Real>, -origin);
      const Real power = power_of(exponent);
      if (kAll) exponent = greater(exponent, static_cast<Real>(-10000));  // 0 * infinity is NaN
      powers += power;
      exponents = fused(power, exponent, exponents);
    }
    if (!kAll && !(exponents - exponents == 0)) return false;
    add_twice(exponents, exponent_sum, exponent_rest);
    add_twice(powers, power_sum, power_rest);
    return true;
  }

  template <int kCount>
  __device__ void take_best_and_weighted(I64 base, const Real (&logits)[kCount]) {
    if (batch.confusion != 0) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        // NaN is greatest, and the first one stays.
        const bool is_first = best_index < 0;
        if (is_first || (!(logits[k] <= best_value) && best_value == best_value)) {
          best_value = logits[k];
          best_index = static_cast<int>(base) + k;
        }
      }
    }
    if (kScores && batch.label_smoothing != 0) {
#pragma unroll
      for (int k = 0; k < kCount; ++k)
        weighted_sum += batch.class_weight == nullptr
                            ? static_cast<double>(logits[k])
                            : batch.class_weight[base + k] * static_cast<double>(logits[k]);
    }
  }
};

/// A row's whole loads.
template <Format kFormat>
__device__ RowLoads loads_of(const typename Numbers<kFormat>::Stored* row, I64 classes) {
  constexpr int kSize = sizeof(*row);
  I64 head = static_cast<int>((16 - reinterpret_cast<U64>(row) % 16) % 16 / kSize);
  if (head > classes) head = classes;
  return {reinterpret_cast<const Load*>(row + head),
          static_cast<int>((classes - head) / (16 / kSize)), static_cast<int>(head)};
}

/// The logits of a load.
template <Format kFormat>
__device__ void convert(const Load& load, typename Numbers<kFormat>::Real* logits) {
  using Stored = typename Numbers<kFormat>::Stored;
  convert<kFormat>(reinterpret_cast<const Stored(&)[16 / sizeof(Stored)]>(load), logits);
}

/// How a row's loads come: by a ring, where `next()` are those of the row after it, none where that
/// one is not read; or from memory.
template <typename Next>
struct ByRing {
  static constexpr bool kIsRing = true;
  Ring& ring;
  const Next& next;
};
struct ByLoads {
  static constexpr bool kIsRing = false;
};

/// Hands loads to `scan`, each `kThreadsOfIt`-th from the one of this thread's rank on; `base` is
/// the class of the first logit.
template <Format kFormat, int kAtOnce, int kThreadsOfIt, typename Scan>
__device__ void scan_loads(const Load* at, int loads, int rank, int base, Scan& scan) {
  using Real = typename Numbers<kFormat>::Real;
  constexpr int kPerLoad = 16 / sizeof(typename Numbers<kFormat>::Stored);
  constexpr int kStep = kAtOnce * kThreadsOfIt;
  // The first of the loads at a time that have the target, where they are this thread's.
  const int place = static_cast<int>(scan.target) - base;
  int special = place / kPerLoad;
  special = place < 0 || special % kThreadsOfIt != rank ? -1 : special / kStep * kStep + rank;
#pragma unroll 1
  for (int i = rank; i < loads; i += kStep) {
    if (i != special && i + (kStep - kThreadsOfIt) < loads) {
      Load load[kAtOnce];
      Real logits[kAtOnce * kPerLoad];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) load[k] = at[i + k * kThreadsOfIt];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) convert<kFormat>(load[k], logits + k * kPerLoad);
      if (scan.take_usual(logits)) continue;
    }
#pragma unroll 1
    for (int j = i; j < loads && j < i + kStep; j += kThreadsOfIt) {
      Real logits[kPerLoad];
      convert<kFormat>(at[j], logits);
      if (i != special && scan.take_usual(logits)) continue;
      scan.take(base + j * kPerLoad, logits);
    }
  }
}

/// Hands a thread's share of a row to `scan`: as many logits at a time as 16 bytes hold, which are
/// one load where the classes lie side by side.
template <Format kFormat, int kAtOnce, typename Group, typename Scan, typename By>
__device__ void scan_share(const typename Numbers<kFormat>::Stored* row, I64 classes, I64 stride,
                           const Group& group, Scan& scan, const By& by) {
  using Real = typename Numbers<kFormat>::Real;
  const auto take_one = [&](I64 c) {
    Real logit[1] = {Numbers<kFormat>::real(row[c * stride])};
    scan.take(c, logit);
  };
  if constexpr (Group::kSize == 1) {
    constexpr int kOfThread = sizeof(Real) == 8 ? 1 : 4;
    const auto* at = row;
    I64 c = 0;
#pragma unroll 1
    for (; c + kOfThread <= classes; c += kOfThread) {
      Real logits[kOfThread];
#pragma unroll
      for (int k = 0; k < kOfThread; ++k, at += stride) logits[k] = Numbers<kFormat>::real(*at);
      scan.take(c, logits);
    }
#pragma unroll 1
    for (; c < classes; ++c) take_one(c);
  } else {
    const RowLoads loads = loads_of<kFormat>(row, classes);
    if constexpr (By::kIsRing) by.ring.begin(loads);
    if (group.rank() < loads.head) take_one(group.rank());
    constexpr int kPerLoad = 16 / sizeof(*row);
    if constexpr (By::kIsRing) {
#pragma unroll 1
      for (int stage = 0; loads.in(stage) > 0; ++stage) {
        scan_loads<kFormat, kAtOnce, 32>(by.ring.wait(), loads.in(stage), threadIdx.x % 32,
                                         loads.head + RowLoads::first_of(stage) * kPerLoad, scan);
        by.ring.release(loads, stage + kRingStages);
      }
      by.ring.begin(by.next());
    } else {
      scan_loads<kFormat, kAtOnce, Group::kSize>(loads.at, loads.count, group.rank(), loads.head,
                                                 scan);
    }
    const int tail = loads.head + loads.count * kPerLoad + group.rank();
    if (tail < classes) take_one(tail);
  }
}

/// What all threads of a group know of a row; the sums only the first one.
struct Row {
  int rank = 0;
  int nonfinite = 0;
  I64 predicted = -1;
  double target = 0;  ///< its logit
  ExpSums sums{};
};

template <Format kFormat, typename Group, bool kScores, bool kFull, typename By>
__device__ Row scan_row(const Batch& batch, const Group& group,
                        const typename Numbers<kFormat>::Stored* logits, I64 target,
                        typename Numbers<kFormat>::Real own, const By& by) {
  using Real = typename Numbers<kFormat>::Real;
  Row row;
  row.target = static_cast<double>(own);  // where it is NaN, so are all scores
  Best best{0, -1};
  if (own == own) {
    RowScan<Real, kScores, kFull> scan(batch, target, own);
    // From a ring no more than registers have room for: nothing waits for memory.
    constexpr bool kHalf = sizeof(*logits) < sizeof(float);
    constexpr int kAtOnce = kFull || sizeof(Real) == sizeof(double) ? 1
                            : By::kIsRing && kScores && kHalf       ? 2
                                                                    : 4;
    scan_share<kFormat, kAtOnce>(logits, batch.classes, batch.class_stride, group, scan, by);
    row.rank = scan.rank;
    row.nonfinite = scan.zeros != 0;
    if constexpr (kScores) {
      const bool weighted = kFull && batch.label_smoothing != 0;
      row.sums = scan.exp_sums();
      group.sum(row.rank, row.nonfinite, row.sums, weighted);
    } else {
      group.sum(row.rank, row.nonfinite);
    }
    best = {static_cast<double>(scan.best_value), scan.best_index};
  } else {  // only NaN before it stand before it
    if constexpr (By::kIsRing) by.ring.drain();
#pragma unroll 1
    for (I64 c = group.rank(); c < target; c += Group::kSize) {
      const Real logit = Numbers<kFormat>::real(logits[c * batch.class_stride]);
      if (logit == logit) continue;
      if (row.rank++ == 0) best = {static_cast<double>(logit), c};
    }
    row.nonfinite = 1;
    group.sum(row.rank, row.nonfinite);
  }
  if (kFull && batch.confusion != 0)
    row.predicted = row.rank == 0 ? target : group.best(best).index;
  return row;
}

}  // namespace
}  // namespace pig::metrics
