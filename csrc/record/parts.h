// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "record/cause_log.h"
#include "record/collective_series.h"
#include "record/device_times.h"
#include "record/documents.h"
#include "record/gil_watch.h"
#include "record/graph_phases.h"
#include "record/host_use.h"
#include "record/metric_series.h"
#include "record/recorder.h"
#include "record/span_record.h"
#include "record/stalls.h"
#include "record/step_tracker.h"
#include "record/sync_log.h"

namespace pig {

/// What the harvester looks for on behalf of the rest of the module, now and then.
class Reminders final : public Part {
 public:
  void reset(const Session&) override { facts_due_ns_ = kFirstFactsNs; }

  void drain(Harvest& harvest) override {
    const int64_t now_ns = harvest.state.now_ns;
    if (harvest.final() || now_ns < facts_due_ns_) return;
    facts_due_ns_ = 2 * now_ns;
    notify(Notice::kProgramFacts);
  }

 private:
  /// Then after twice as long each time: what is known of a program seldom changes later.
  static constexpr int64_t kFirstFactsNs = 1'000'000'000;

  int64_t facts_due_ns_ = 0;
};

/// All that is recorded. The parts of the process's recorder, for those who record.
struct Parts {
  StepTracker& steps() { return is_scratch() ? scratch_->steps : all_steps; }
  /// Sets the calling thread's state aside for one that nobody reads, to measure what a phase
  /// costs; and takes it back.
  void begin_scratch();
  void end_scratch();
  bool is_scratch() const { return scratch_ && this_thread == &scratch_->state; }

  StepTracker all_steps;
  SpanStatistics statistics{all_steps};
  DeviceTimes device_times{statistics};
  GraphPhases graph_phases;
  SpanRecord spans{statistics, device_times, graph_phases};
  MetricSeries metrics;
  CauseLog causes;
  HostUse host_use{metrics, causes};
  GilWatch gil_watch{host_use, causes};
  SyncLog syncs;
  CollectiveSeries collectives;
  Documents documents;
  Stalls stalls{all_steps, spans, collectives, documents};
  Reminders reminders;

 private:
  struct Scratch {
    PathTable paths;
    DropCounters drops;
    StepTracker steps{/*published=*/false};
    ThreadState state;
  };
  std::unique_ptr<Scratch> scratch_;
  ThreadState* set_aside_ = nullptr;
};

Parts& parts();

}  // namespace pig
