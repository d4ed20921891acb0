// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "block_log.h"
#include "clock.h"
#include "drops.h"
#include "path_table.h"
#include "span.h"
#include "statistics.h"
#include "step_tracker.h"
#include "storage.h"
#include "thread_registry.h"

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
};

/// One run's records in their encoding, in the order in which readers need them: a name before its
/// path, a path and a thread before its spans.
class RunLog {
 public:
  RunLog(std::unique_ptr<Storage> storage, uint64_t run_id, uint64_t history_spans,
         uint64_t max_bytes);

  /// Appends the paths, with their names, and the threads that are new since the last call.
  void append_tables(const PathTable& paths, const ThreadRegistry& threads);
  void append_spans(const std::vector<SpanItem>& spans);
  void append_steps(const std::vector<StepItem>& steps);
  void append_dropped_steps(const std::vector<uint32_t>& serials);

  void write_environment(const std::string& json);
  void write_state(const RunState& state, const DropCounters& drops);
  /// `rows` is the encoding of a StatisticsTable, `totals` that of the StepTotals.
  void write_statistics(const std::vector<uint8_t>& totals, const std::vector<uint8_t>& rows);

  /// 0, or the errno of the write that ended the history.
  int error() const { return log_.error(); }
  RunState::Losses losses() const { return {lost_spans_, log_.dropped(), log_.error()}; }
  Storage& storage() { return *storage_; }

 private:
  void append_name(uint32_t phase);

  std::unique_ptr<Storage> storage_;
  BlockLog log_;
  std::vector<uint32_t> name_of_phase_;  ///< the name's number in this run
  uint32_t names_ = 0;
  size_t paths_ = 0;
  size_t threads_ = 0;
  uint64_t lost_spans_ = 0;  ///< not written because of the error
};

}  // namespace pig
