// SPDX-License-Identifier: Apache-2.0
//
// The one recording of the process: what ties the parts together.
//
// Threads record into their own ThreadState. `harvest` collects: it drains the rings, folds
// statistics and brings the run log up to date. The harvester thread calls it at each turn and
// needs no GIL; `flush` and `stop` may call it from the caller's thread. `harvest_mutex_` lets one
// of them in at a time. It is not held across a call of the CUDA driver, which may block: the
// harvester thread asks the driver first, and then harvests with what it has found out.
//
// stop relies on the GIL: while it is held no other thread is inside the hot path, but for those
// inside the driver, which look again when they come back. So `close_gate`, which sets
// `active_epoch` to 0, ends all writing to rings. In a free-threaded interpreter a thread that is
// inside `end` at that very moment can lose that one span.
//
// A forked child has no harvester, and locks may be held by threads that do not exist in it. It
// gets a fresh Recorder; the old one is leaked and its file descriptor closed. Nothing is recorded
// in the child until it starts a recording of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/drops.h"
#include "cuda/device_timing.h"
#include "hot/path_table.h"
#include "hot/thread_state.h"
#include "log/log_tap.h"
#include "log/run_log.h"
#include "record/collective_series.h"
#include "record/device_time_join.h"
#include "record/harvester.h"
#include "record/metric_series.h"
#include "record/overflow_statistics.h"
#include "record/stall_log.h"
#include "record/statistics_table.h"
#include "record/step_tracker.h"
#include "record/sync_log.h"
#include "record/thread_registry.h"
#include "record/watchdog.h"

namespace pig {

class Recorder {
 public:
  struct Options {
    std::optional<std::string> path;  ///< nothing: in memory
    bool overwrite = false;
    uint64_t history_spans = 0;
    uint64_t max_bytes = 0;
    std::string environment;  ///< a JSON object
    int64_t watchdog_ns = 0;  ///< the least time without a step that is a stall; 0: none is
  };

  static Recorder& instance();
  /// Makes forked children start afresh. Once per process.
  static void install_fork_handler();

  /// Throws std::logic_error when a recording is active, std::system_error when the file can't be
  /// written or no thread can be started. Returns the moment that is the run's zero.
  ClockAnchor start(const Options& options);
  /// Ends all recording. With the GIL held.
  void close_gate();
  /// After `close_gate`: gives the device a second to finish what it was asked to time, ends the
  /// harvester and finishes the log. Without the GIL, for it may wait for a disk.
  void stop();
  /// Brings the log up to date. Waits for up to a second where the driver blocks, and then does
  /// without what the device has.
  void harvest_now();
  /// The same, and waits at most so long, or a tenth of a second, for outstanding device times.
  /// Returns whether none is outstanding.
  bool flush(std::chrono::nanoseconds timeout = {});
  /// The harvester writes it at its next turn: this waits for no disk.
  void set_document(BlockType type, std::string json);

  /// Times the device too, from now on or from when it is attached. May block in the driver.
  void start_device_timing(const cuda::DeviceTiming::Options& options);

  uint64_t run_id() const { return run_id_; }
  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  /// What ended the writing of history, or empty; also once the recording has stopped.
  std::string error() const;
  /// The log of a recording in memory. Of one whose file failed: all but the history. Once the
  /// recording has stopped, the memory is given back with it: a second call has nothing.
  std::vector<uint8_t> log_bytes();

  /// From here on what goes to the log is kept for `take_tap` too, with the tables as they stand.
  /// Returns the number of the tap: each of several readers has its own.
  uint64_t open_tap();
  /// What is new since the last call, as LogTap has it. Also once after `stop`.
  std::vector<uint8_t> take_tap(uint64_t number);
  void close_tap(uint64_t number);
  /// As `harvest_now`; the log then has statistics of all that was drained.
  void harvest_statistics();

  /// Makes the calling thread's state ready for the recording `epoch`. Throws std::bad_alloc.
  ThreadState* attach(uint32_t epoch, std::string thread_name);
  /// Sets the calling thread's state aside for one that nobody reads, to measure what a phase
  /// costs; and takes it back.
  void begin_scratch();
  void end_scratch();
  bool is_scratch() const { return scratch_ && this_thread == &scratch_->state; }

  /// Adds a reading of metrics to the recording that is active, as of now. What finds no room is
  /// counted. Costs microseconds; the harvester writes it.
  struct MetricValue {
    std::string name;
    double value = 0;
    uint32_t step = kNoStep;  ///< in which it was last updated
  };
  void append_reading(uint64_t update, const std::vector<MetricValue>& values);

  /// Adds collective operations, as CollectiveItem has them, for the harvester to write. Returns
  /// how many there was room for.
  size_t append_collectives(std::span<const uint8_t> items);

  /// The stalls that were noticed.
  StallLog& stalls() { return stalls_; }

  ThreadRegistry& threads() { return threads_; }
  /// The steps that the calling thread opens and closes.
  StepTracker& steps() { return is_scratch() ? scratch_->steps : steps_; }
  DropCounters& drops() { return drops_; }
  SyncLog& syncs() { return syncs_; }
  const Clock& clock() const { return clock_; }

  /// Whom to tell; nobody when null.
  static void set_notify(void (*notify)(Notice)) { notify_ = notify; }

 private:
  struct Scratch {
    PathTable paths;
    DropCounters drops;
    StepTracker steps;
    ThreadState state;
  };

  static inline void (*notify_)(Notice) = nullptr;

  static void wake_harvester();
  static void notify(Notice notice) {
    if (notify_ != nullptr) notify_(notice);
  }
  /// Why there is a harvest.
  enum class Occasion {
    kTick,
    kAsked,  ///< somebody wants the log as it is now
    kEnd,
  };
  void turn(uint64_t number, bool asked);
  uint64_t activity() const;
  bool rest();
  void last_turn(uint64_t number);
  bool harvest_until(Harvester::Deadline deadline);
  static bool has_room();
  /// Takes the times that became known on the device. False where memory was short.
  bool harvest(Occasion occasion, const cuda::DeviceTiming::Findings& findings = {});
  void collect(Occasion occasion, const cuda::DeviceTiming::Findings& findings);
  void write(Occasion occasion, RunState& state);
  /// Nothing where it has not changed since it was last taken.
  enum class Documents { kChanged, kAll };
  void write_documents(RunLog& log, Documents which);
  void drain(ThreadState& state);
  void settle_device_times(Occasion occasion, int64_t now_ns,
                           const cuda::DeviceTiming::Findings& findings);
  void join_device_times(bool final, const cuda::DeviceTiming::Findings& findings);
  void pin_events_in_use();
  /// Returns whether none began after the time of the state: those are left out.
  bool collect_open_frames(RunState& state);
  void look_for_stall(const RunState& state, const std::vector<CollectiveItem>& collectives);
  std::string sentence_of_stall(const StallLog::Place& place) const;
  std::string path_text(uint32_t path) const;
  LogTables tables_since(const RunLog::Counts& counts) const;
  void write_statistics(RunLog& log);
  void write_end(RunLog& log, const RunState& state);
  void look_for_driver();

  std::atomic<bool> recording_{false};
  std::atomic<bool> is_closing_{false};  ///< the open step is ended by us, and not by the program
  uint32_t epoch_ = 0;
  uint64_t run_id_ = 0;
  Clock clock_;
  DropCounters drops_;
  PathTable paths_;
  StepTracker steps_;
  OverflowStatistics overflow_;
  SyncLog syncs_;
  ThreadRegistry threads_;
  MetricSeries metrics_;
  CollectiveSeries collectives_;
  StallLog stalls_{[this](std::string json) { set_document(BlockType::kStalls, std::move(json)); }};
  Harvester harvester_;
  std::unique_ptr<Scratch> scratch_;
  ThreadState* set_aside_ = nullptr;

  // Under harvest_mutex_.
  mutable std::mutex harvest_mutex_;
  uint64_t activity_ = 0;  ///< when the last harvest began
  bool statistics_asked_ = false;
  int64_t harvest_due_ns_ = 0;       ///< then there is another one, even if nothing is new
  uint64_t recordings_ = 0;          ///< so far
  std::map<uint64_t, LogTap> taps_;  ///< outlive the log that writes to them
  uint64_t taps_opened_ = 0;         ///< so far
  std::unique_ptr<RunLog> log_;
  bool in_memory_ = false;
  SpanStatistics statistics_;    ///< of the spans drained, and of those no ring had room for
  uint64_t spans_recorded_ = 0;  ///< likewise
  RunState last_state_;
  Watchdog watchdog_;
  int64_t newest_collective_ns_ = 0;  ///< when it was created
  ClockAnchor anchor_{};
  std::unique_ptr<uint8_t[]> reserve_;  ///< memory for the last harvest
  std::vector<RawSpan> raw_;
  std::vector<SpanRing::Events> events_;
  std::vector<SpanItem> items_;
  DeviceTimeJoin device_time_join_;
  int64_t sign_of_life_ns_ = 0;        ///< when STATE was last written
  int64_t statistics_written_ns_ = 0;  ///< likewise
  int64_t statistics_cost_ns_ = 0;
  uint64_t statistics_spans_ = 0;  ///< of the log, that the statistics in it count
  bool has_overflowed_ = false;    ///< since the statistics were written
  int64_t facts_due_ns_ = 0;
  std::string control_path_;    ///< where a request may appear; empty: nowhere
  int64_t request_due_ns_ = 0;  ///< when it is looked for again
  uint64_t harvester_cpu_ns_ = 0;
  int64_t cpu_time_due_ns_ = 0;            ///< when it is read again
  int64_t driver_due_ns_ = 0;              ///< when it is looked for again
  unsigned long long libraries_seen_ = 0;  ///< how many had been loaded when the driver was sought
  bool driver_is_loaded_ = false;
  int reported_error_ = 0;  ///< of the recording or, until the next begins, of the last one

  struct JsonDocument {
    std::string json;
    bool changed;
  };
  std::mutex documents_mutex_;  ///< the innermost; held for as long as strings are copied
  std::map<BlockType, JsonDocument> documents_;
  /// How often a document was set, or collectives were appended.
  std::atomic<uint64_t> handed_in_{0};
};

}  // namespace pig
