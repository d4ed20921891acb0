// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the metrics. NVRTC compiles them for the device at hand, beside the training.
//
// One kernel is all of an update: ranks, counts, losses, the fold into the state and the snapshot
// for the host. A row is read once, by one thread, a warp or a block, by the number of classes and
// by how they lie (kernel_row.cuh); on the large devices a block's rows come by bulk copies
// (kernel_ring.cuh). Updates without logits are in kernel_elements.cuh. What follows the rows or
// elements is in kernel_finish.cuh.
#include "metrics/kernel_elements.cuh"
#include "metrics/kernel_finish.cuh"
#include "metrics/kernel_row.cuh"

namespace pig::metrics {
namespace {

// --- an update by logits ---

/// What is read of a row besides its logits. Nothing is computed from it until the row's turn, so
/// that nothing waits for it before.
struct RowHead {
  RowOffsets at;
  U64 target_bits;
  U64 weight_bits;

  __device__ I64 target(const Batch& batch) const {
    return index_of_bits(target_bits, batch.target_format);
  }
  __device__ double weight(const Batch& batch) const {
    return batch.weight == nullptr ? 1 : real_of_bits(weight_bits, batch.weight_format);
  }
};

__device__ RowHead load_head(const Batch& batch, I64 row) {
  RowHead head;
  head.at = row_offsets(batch, row);
  head.target_bits = load_bits(batch.target, batch.target_format, head.at.target);
  head.weight_bits =
      batch.weight == nullptr ? 0 : load_bits(batch.weight, batch.weight_format, head.at.weight);
  return head;
}

/// By the first thread of a group.
__device__ void add_scores_of(const UpdateParameters& p, I64 target, double weight, const Row& row,
                              BlockTotals& totals) {
  add_scores(
      score_row(p.batch, target, with_target(row.sums, row.target, p.batch.class_weight_sum)),
      weight, totals);
}

/// The same as a function of its own, whose registers the scan of rows does without.
__device__ __noinline__ void call_add_scores_of(const UpdateParameters& p, I64 target,
                                                double weight, double target_logit,
                                                double reference, double greatest, double exp_sum,
                                                double shift_sum, double weighted_sum,
                                                BlockTotals& totals) {
  const Row row{0, 0, -1, target_logit, {reference, greatest, exp_sum, shift_sum, weighted_sum}};
  add_scores_of(p, target, weight, row, totals);
}

template <Format kFormat, typename Group, bool kScores, typename By>
__device__ void add_row_of_logits(const UpdateParameters& p, const Group& group,
                                  const RowHead& head, const By& by, BlockTotals& totals) {
  using Stored = typename Numbers<kFormat>::Stored;
  const Batch& batch = p.batch;
  const I64 target = head.target(batch);
  const double weight = head.weight(batch);
  // All threads of the group agree; one of them counts.
  BlockTotals left_out{};
  if (!row_counts(batch, target, weight, left_out)) {
    if (group.rank() == 0) {
      totals.ignored += left_out.ignored;
      totals.invalid += left_out.invalid;
    }
    return;
  }
  const auto* logits = static_cast<const Stored*>(batch.logits) + head.at.logits;
  const auto own = Numbers<kFormat>::real(logits[target * batch.class_stride]);
  const bool is_full = batch.confusion != 0 || (kScores && batch.label_smoothing != 0);
  const Row row =
      is_full
          ? scan_row<kFormat, Group, kScores, true>(batch, group, logits, target, own, ByLoads())
          : scan_row<kFormat, Group, kScores, false>(batch, group, logits, target, own, by);
  if (group.rank() != 0) return;
  // With scores a row has no loss of its own, and its offset no register.
  add_row(batch, row.rank, row.nonfinite == 0, weight, kScores ? 0 : head.at.loss, totals);
  if constexpr (kScores && Group::kSize == 1) {
    add_scores_of(p, target, weight, row, totals);
  } else if constexpr (kScores) {
    const ExpSums& sums = row.sums;
    call_add_scores_of(p, target, weight, row.target, sums.reference, sums.greatest, sums.exp_sum,
                       sums.shift_sum, sums.weighted_sum, totals);
  }
  if (batch.confusion != 0)
    atomicAdd(confusion_of(*p.launch.state) + target * batch.classes + row.predicted, weight);
}

template <Format kFormat, typename Group, bool kScores>
__device__ void add_rows(const UpdateParameters& p, BlockTotals& totals) {
  const Group group;
  const Batch& batch = p.batch;
  constexpr int kGroups = kThreads / Group::kSize;
  const I64 step = static_cast<I64>(gridDim.x) * kGroups;
  I64 row = static_cast<I64>(blockIdx.x) * kGroups + group.index();
  if constexpr (Group::kSize == 1) {  // its registers are full, and there are many of it
    for (; row < batch.rows; row += step)
      add_row_of_logits<kFormat, Group, kScores>(p, group, load_head(batch, row), ByLoads(),
                                                 totals);
    return;
  }
  if (row >= batch.rows) return;
  RowHead head = load_head(batch, row);
  RowHead next;
  bool more = false;
  const auto go_over = [&](const auto& by) {
    for (;;) {
      row += step;
      more = row < batch.rows;
      if (more) next = load_head(batch, row);  // it arrives while the current row is read
      add_row_of_logits<kFormat, Group, kScores>(p, group, head, by, totals);
      if (!more) return;
      head = next;
    }
  };
  // Short rows are over before a ring would have begun.
  if constexpr (kHasRing && Group::kSize == kThreads && sizeof(Numbers<kFormat>::real({})) == 4) {
    Ring ring;
    const auto loads_of_next = [&]() -> RowLoads {
      BlockTotals unused{};
      if (!more || !row_counts(batch, next.target(batch), next.weight(batch), unused)) return {};
      const auto* logits = static_cast<const typename Numbers<kFormat>::Stored*>(batch.logits);
      return loads_of<kFormat>(logits + next.at.logits, batch.classes);
    };
    go_over(ByRing<decltype(loads_of_next)>{ring, loads_of_next});
  } else {
    go_over(ByLoads());
  }
}

template <Format kFormat, typename Group, bool kScores>
__device__ void update(const UpdateParameters& p) {
  BlockTotals& of_warp = shared<UpdateParameters>().warps[threadIdx.x / 32];
  if constexpr (Group::kSize == 1) {
    BlockTotals totals{};
    add_rows<kFormat, Group, kScores>(p, totals);
    merge_threads(p, totals);
    if (threadIdx.x % 32 == 0) of_warp = totals;
  } else {  // only the first lane of a warp adds to it
    if (threadIdx.x % 32 == 0) of_warp = {};
    add_rows<kFormat, Group, kScores>(p, of_warp);
  }
  finish(p, 0);
}

}  // namespace
}  // namespace pig::metrics

#define PIG_UPDATE_BY(name, format, by, group, scores)                                    \
  extern "C" __global__ void __launch_bounds__(                                           \
      pig::metrics::kThreads,                                                             \
      pig::metrics::blocks_per_processor(scores, pig::metrics::format, pig::metrics::by)) \
      pig_metric_##name(const __grid_constant__ pig::metrics::UpdateParameters p) {       \
    pig::metrics::update<pig::metrics::format, pig::metrics::group, scores>(p);           \
  }
#define PIG_UPDATE(name, format)                                                         \
  PIG_UPDATE_BY(update_##name##_thread, format, RowsBy::kThread, OneThread, false)       \
  PIG_UPDATE_BY(update_##name##_warp, format, RowsBy::kWarp, Warp, false)                \
  PIG_UPDATE_BY(update_##name##_block, format, RowsBy::kBlock, Block, false)             \
  PIG_UPDATE_BY(cross_entropy_##name##_thread, format, RowsBy::kThread, OneThread, true) \
  PIG_UPDATE_BY(cross_entropy_##name##_warp, format, RowsBy::kWarp, Warp, true)          \
  PIG_UPDATE_BY(cross_entropy_##name##_block, format, RowsBy::kBlock, Block, true)

PIG_UPDATE(float64, kFloat64)
PIG_UPDATE(float32, kFloat32)
PIG_UPDATE(float16, kFloat16)
PIG_UPDATE(bfloat16, kBfloat16)

#define PIG_ELEMENTS(name, Parameters)                                            \
  extern "C" __global__ void __launch_bounds__(pig::metrics::kThreads,            \
                                               pig::metrics::Parameters::kBlocks) \
      pig_metric_##name(const __grid_constant__ pig::metrics::Parameters p) {     \
    pig::metrics::update_elements(p);                                             \
  }

PIG_ELEMENTS(values, ValuesParameters)
PIG_ELEMENTS(rows, RowsParameters)

extern "C" __global__ void __launch_bounds__(pig::metrics::kThreads, 1)
    pig_metric_scalar(const __grid_constant__ pig::metrics::ScalarParameters p) {
  using namespace pig::metrics;
  if (threadIdx.x == 0) {
    const double value = p.value == nullptr ? p.number : load_real(p.value, p.format, 0);
    lock(p.launch.scratch->lock);
    fold_number(value, p.ema, p.launch.state->scalars[p.slot]);
  }
  publish(p.launch);
  if (threadIdx.x == 0) unlock(p.launch.scratch->lock);
}
