// SPDX-License-Identifier: Apache-2.0
#include "metrics/metric_accumulator.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/throwing.h"
#include "metrics/cpu_scan.h"
#include "record/recorder.h"

namespace pig::metrics {
namespace {

constexpr int64_t kReadingIntervalNs = 100'000'000;
constexpr int64_t kReadingsOfLongRun = 1000;

}  // namespace

bool MetricAccumulator::add(const UpdateParameters& update, State& state, int max_threads) {
  const Batch& batch = update.batch;
  std::vector<ConfusionCell> cells;
  Totals totals;
  const bool is_scanned = try_allocating([&] {
    if (batch.confusion != 0) cells.resize(static_cast<size_t>(batch.rows));
    totals = scan_on_cpu(batch, cells, max_threads);
  });
  if (!is_scanned) return false;
  const std::lock_guard lock(mutex_);
  if (other_is_running_) return false;
  for (const ConfusionCell& cell : cells) {
    if (cell.target < 0) continue;
    confusion_of(state)[cell.target * batch.classes + cell.predicted] += cell.weight;
  }
  fold_update(batch, totals, state);
  note_update(state.updates);
  return true;
}

bool MetricAccumulator::add(const ScalarParameters& update, State& state, int) {
  const double value =
      update.value == nullptr ? update.number : load_real(update.value, update.format, 0);
  const std::lock_guard lock(mutex_);
  if (other_is_running_) return false;
  Scalar& scalar = state.scalars[update.slot];
  fold_number(value, update.ema, scalar);
  note_scalar(update.slot, scalar.updates);
  return true;
}

template <typename Update>
bool MetricAccumulator::add_elements(const Update& update, State& state, int max_threads) {
  const double shift = Update::kIsUpdate ? 0 : shift_of(update.batch);
  typename Update::template Found<U64> found;
  if (!try_allocating([&] { found = scan_elements(update, shift, max_threads); })) return false;
  const std::lock_guard lock(mutex_);
  if (other_is_running_) return false;
  update.fold(found, shift, state);
  if constexpr (Update::kIsUpdate)
    note_update(state.updates);
  else
    note_scalar(update.slot, state.scalars[update.slot].updates);
  return true;
}

bool MetricAccumulator::add(const ValuesParameters& update, State& state, int max_threads) {
  return add_elements(update, state, max_threads);
}

bool MetricAccumulator::add(const RowsParameters& update, State& state, int max_threads) {
  return add_elements(update, state, max_threads);
}

void MetricAccumulator::end_other(Addition addition, int slot, bool is_counted,
                                  std::optional<cuda::Stream> stream) {
  const std::lock_guard lock(mutex_);
  other_is_running_ = false;
  if (addition == Addition::kScalar) scalars_in_use_ = std::max(scalars_in_use_, slot + 1);
  if (!is_counted) device_counts_are_known_ = false;
  if (addition == Addition::kNothing) return;
  if (!is_counted) return note_news();
  if (stream) keep_order(*stream);
  if (addition == Addition::kUpdate) note_update(counts_[0] + 1);
  if (addition == Addition::kScalar) note_scalar(slot, count_of(slot) + 1);
}

int MetricAccumulator::in_use(const Counts& counts) {
  int slots = kMaxScalars;
  while (slots > 0 && counts[static_cast<size_t>(slots)] == 0) --slots;
  return slots;
}

void MetricAccumulator::replace_counts(const std::optional<Counts>& counts) {
  const std::lock_guard lock(mutex_);
  labels_.clear();
  forget_scalars();
  counts_ = counts.value_or(Counts{});
  scalars_in_use_ = counts ? std::max(scalars_in_use_, in_use(*counts)) : kMaxScalars;
  device_counts_are_known_ = counts.has_value() && !launcher_.was_captured();
  stream_.reset();
}

void MetricAccumulator::reset_scalars() {
  const std::lock_guard lock(mutex_);
  forget_scalars();
}

void MetricAccumulator::forget_scalars() {
  std::fill(counts_.begin() + 1, counts_.end(), 0);
  for (auto& labels : scalar_labels_) labels.clear();
}

void MetricAccumulator::note_update(uint64_t number) {
  counts_[0] = number;
  if (device_counts_are_known_ && !launches_overlap_) labels_.set(number);
  note_news();
}

void MetricAccumulator::note_scalar(int slot, uint64_t number) {
  count_of(slot) = number;
  scalars_in_use_ = std::max(scalars_in_use_, slot + 1);
  if (device_counts_are_known_ && !launches_overlap_)
    scalar_labels_[static_cast<size_t>(slot)].set(number);
  note_news();
}

void MetricAccumulator::keep_order(cuda::Stream stream) {
  stream = identity_of(stream);
  if (!stream_) stream_ = stream;
  if (*stream_ == stream || !device_counts_are_known_) return;
  // What is under way on the other stream may be counted after this.
  device_counts_are_known_ = false;
  labels_.clear();
  for (auto& labels : scalar_labels_) labels.clear();
}

uint32_t MetricAccumulator::take_news() {
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  return std::exchange(news_epoch_, 0) == epoch ? epoch : 0;
}

bool MetricAccumulator::copy(State& state, std::span<uint8_t> bytes) {
  const std::lock_guard lock(mutex_);
  if (other_is_running_) return false;
  std::memcpy(bytes.data(), &state, bytes.size());
  return true;
}

std::optional<U64> MetricAccumulator::reset(State& state) {
  const std::lock_guard lock(mutex_);
  if (other_is_running_) return std::nullopt;
  constexpr size_t kept = offsetof(State, count);
  std::memset(reinterpret_cast<uint8_t*>(&state) + kept, 0, options_.state_bytes() - kept);
  ++state.resets;
  forget_scalars();
  return state.updates;
}

bool MetricAccumulator::reading_is_due() {
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  if (epoch == 0) return false;
  const int64_t now_ns = Recorder::instance().clock().to_ns(read_ticks());
  const std::lock_guard lock(mutex_);
  if (reading_epoch_ == epoch && now_ns < next_reading_ns_) return false;
  reading_epoch_ = epoch;
  next_reading_ns_ = now_ns + std::max(kReadingIntervalNs, now_ns / kReadingsOfLongRun);
  return true;
}

}  // namespace pig::metrics
