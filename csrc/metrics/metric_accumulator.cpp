// SPDX-License-Identifier: Apache-2.0
#include "metrics/metric_accumulator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "metrics/cpu_scan.h"
#include "record/recorder.h"

namespace pig::metrics {
namespace {

constexpr int64_t kReadingIntervalNs = 100'000'000;
constexpr int64_t kReadingsOfLongRun = 1000;

}  // namespace

void MetricAccumulator::update(const Batch& batch, State& state, int max_threads) {
  const Totals totals = scan_on_cpu(batch, state, max_threads);
  const std::lock_guard lock(mutex_);
  fold_update(batch, totals, state);
  updates_ = state.updates;
  label();
}

void MetricAccumulator::update_scalar(double value, int slot, State& state) {
  const std::lock_guard lock(mutex_);
  fold_scalar(value, state.scalars[slot]);
  label();
}

bool MetricAccumulator::launch(const Batch& batch, State* state, Scratch* scratch, int device,
                               cuda::Stream stream) {
  const std::lock_guard launching(launch_mutex_);
  if (other_is_running_ || !launcher_.update(batch, state, scratch, device, stream)) return false;
  if (launcher_.has_captured()) return true;  // it has not been made yet, and perhaps never is
  const std::lock_guard lock(mutex_);
  ++updates_;
  label();
  return true;
}

bool MetricAccumulator::launch_scalar(const void* value, Format format, double number, int slot,
                                      State* state, Scratch* scratch, int device,
                                      cuda::Stream stream) {
  const std::lock_guard launching(launch_mutex_);
  const I64 classes = options_.confusion ? options_.classes : 0;
  if (other_is_running_ || !launcher_.update_scalar(value, format, number, slot, state, scratch,
                                                    classes, device, stream))
    return false;
  if (launcher_.has_captured()) return true;
  const std::lock_guard lock(mutex_);
  label();
  return true;
}

void MetricAccumulator::end_other(bool added, bool is_update) {
  const std::lock_guard launching(launch_mutex_);
  other_is_running_ = false;
  if (!added) return;
  const std::lock_guard lock(mutex_);
  if (is_update) ++updates_;
  label();
}

void MetricAccumulator::label() {
  labels_.set(updates_);
  news_epoch_ = active_epoch.load(std::memory_order_relaxed);
}

bool MetricAccumulator::take_news() {
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  return std::exchange(news_epoch_, 0) == epoch && epoch != 0;
}

void MetricAccumulator::copy(const State& state, std::vector<uint8_t>& bytes) const {
  const std::lock_guard lock(mutex_);
  std::memcpy(bytes.data(), &state, bytes.size());
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
