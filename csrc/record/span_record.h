// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hot/path_table.h"
#include "hot/thread_state.h"
#include "record/device_times.h"
#include "record/graph_phases.h"
#include "record/part.h"
#include "record/span_statistics.h"
#include "record/thread_registry.h"

namespace pig {

/// The finished spans of all threads and the open ones, the paths and threads that they refer to,
/// and their statistics, which lose nothing.
class SpanRecord final : public Part {
 public:
  SpanRecord(SpanStatistics& statistics, DeviceTimes& device_times, GraphPhases& graph_phases)
      : overflow_(statistics.steps()),
        statistics_(statistics),
        device_times_(device_times),
        graph_phases_(graph_phases) {}

  /// Makes the calling thread's state ready for the recording `epoch`. Throws std::bad_alloc.
  ThreadState* attach(uint32_t epoch, std::string thread_name);
  ThreadRegistry& threads() { return threads_; }
  PathTable& paths() { return paths_; }
  std::string path_text(uint32_t path) const;
  /// How many have ended, at the last harvest.
  uint64_t recorded() const { return recorded_; }

  void reset(const Session& session) override;
  void close() override { threads_.run_requests(); }
  uint64_t activity() const override { return threads_.activity() + kChange * paths_.size(); }
  void take(Harvest& harvest) override;
  void drain(Harvest& harvest) override;
  bool has_outgrown(const RunLog& log) const override {
    return has_overflowed_ || log.dropped(BlockType::kSpans) > spans_counted_;
  }
  void write_statistics(RunLog& log, bool is_due) override;
  void write_copy(RunLog& log, Copy copy) override;

 private:
  void pin_events_in_use();
  void drain(ThreadState& thread, const RunLog& log);
  void take_open_frames(Harvest& harvest) const;

  const Clock* clock_ = nullptr;
  DropCounters* drops_ = nullptr;
  PathTable paths_;
  ThreadRegistry threads_;
  OverflowStatistics overflow_;
  SpanStatistics& statistics_;  ///< of the spans drained, and of those no ring had room for
  DeviceTimes& device_times_;
  GraphPhases& graph_phases_;
  std::vector<RawSpan> raw_;
  std::vector<SpanRing::Events> events_;
  std::vector<SpanItem> items_;
  uint64_t recorded_ = 0;
  uint64_t spans_counted_ = 0;   ///< of the log, by the statistics in it
  bool has_overflowed_ = false;  ///< since the statistics were written
};

}  // namespace pig
