// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/drops.h"
#include "hot/path_table.h"
#include "hot/span.h"
#include "log/block_log.h"
#include "log/device_time_item.h"
#include "log/storage.h"
#include "record/metric_series.h"
#include "record/statistics.h"
#include "record/step_tracker.h"
#include "record/sync_log.h"
#include "record/thread_registry.h"

namespace pig {

/// What STATE says (docs/run-file.md), but for what the log itself knows.
struct RunState {
  struct Open {
    uint32_t thread;
    uint32_t path;
    int64_t begin_ns;
    uint32_t step;
    uint32_t depth;
  };
  /// How the device is timed.
  struct Device {
    uint32_t every;                                      ///< the device is timed in every k-th step
    uint64_t records;                                    ///< events recorded
    uint64_t record_ns;                                  ///< host time that took
    std::vector<std::pair<uint32_t, uint64_t>> pending;  ///< spans not finished there, by path
  };
  /// What the file could not keep.
  struct Losses {
    uint64_t disk_error_spans = 0;  ///< not written because of the error
    BlockLog::Dropped dropped;
    int error = 0;  ///< the errno that ended the history
  };
  bool final = false;
  ClockAnchor anchor{};
  Losses losses;
  uint64_t phases_recorded = 0;
  uint64_t harvester_cpu_ns = 0;
  std::optional<StepTracker::Open> open_step;
  int64_t open_step_begin_ns = 0;
  std::vector<Open> open;
  std::optional<Device> device;
};

/// One run's records in their encoding, in the order in which readers need them: a name before its
/// path, a path and a thread before its spans.
class RunLog {
 public:
  RunLog(std::unique_ptr<Storage> storage, uint64_t run_id, uint64_t history_spans,
         uint64_t max_bytes);

  /// Appends the paths, with their names, and the threads that are new since the last call.
  void append_tables(const PathTable& paths, const ThreadRegistry& threads);
  /// Gives `tap` the tables as they stand in the log, and from then on all that is written; not the
  /// sites of waits, which no reader of a tap wants. `dropped_steps` are all so far; the last of
  /// them may come again.
  void set_tap(LogTap& tap, const PathTable& paths, const ThreadRegistry& threads,
               const MetricSeries& metrics, const std::vector<uint32_t>& dropped_steps);
  void remove_tap() { log_.set_tap(nullptr); }

  void append_spans(const std::vector<SpanItem>& spans);
  void append_steps(const std::vector<StepItem>& steps);
  void append_streams(const std::vector<StreamItem>& streams);
  void append_device_clocks(const std::vector<DeviceClockItem>& points);
  void append_device_times(const std::vector<DeviceTimeItem>& times);
  void append_dropped_steps(const std::vector<uint32_t>& serials);
  /// The values, after the names that are new since the last call.
  void append_metrics(const MetricSeries& metrics, const std::vector<MetricItem>& items);
  /// The waits, after the sites that are new since the last call.
  void append_syncs(const SyncLog& syncs, const std::vector<SyncItem>& items);

  void write_environment(const std::string& json);
  void write_state(const RunState& state, const DropCounters& drops);
  void write_sync_statistics(const SyncLog& syncs);
  /// `rows` is the encoding of a StatisticsTable, `totals` that of the StepTotals.
  void write_statistics(const std::vector<uint8_t>& totals, const std::vector<uint8_t>& rows);

  /// Spans appended so far.
  uint64_t spans() const { return log_.items(BlockType::kSpans); }
  /// 0, or the errno of the write that ended the history.
  int error() const { return log_.error(); }
  RunState::Losses losses() const { return {lost_spans_, log_.dropped(), log_.error()}; }
  Storage& storage() { return *storage_; }

 private:
  void append_name(uint32_t phase);
  void append_path(const PathTable::Path& path);
  void append_thread(const ThreadRegistry::Info& thread);
  void append_metric_name(const std::string& name);

  std::unique_ptr<Storage> storage_;
  BlockLog log_;
  std::vector<uint32_t> name_of_phase_;  ///< the name's number in this run
  uint32_t names_ = 0;
  size_t paths_ = 0;
  size_t threads_ = 0;
  size_t metric_names_ = 0;
  size_t sync_sites_ = 0;
  uint64_t lost_spans_ = 0;  ///< not written because of the error
};

}  // namespace pig
