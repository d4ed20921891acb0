// SPDX-License-Identifier: Apache-2.0
//
// The one recording of the process: what ties the parts together.
//
// Threads record into their own ThreadState and into the parts. `harvest` collects: it goes over
// the parts and brings the run log up to date. The harvester thread calls it at each turn and needs
// no GIL; `flush` and `stop` may call it from the caller's thread. `harvest_mutex_` lets one of
// them in at a time. It is not held across a call of the CUDA driver, which may block: the
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
#include <string>
#include <vector>

#include "record/harvester.h"
#include "record/part.h"

namespace pig {

/// All parts, in the order in which they are drained. Once per recorder.
std::vector<Part*> make_parts();

class Recorder {
 public:
  static Recorder& instance();
  /// Makes forked children start afresh. Once per process.
  static void install_fork_handler();

  /// Throws std::logic_error when a recording is active, std::system_error when the file can't be
  /// written or no thread can be started. Returns the moment that is the run's zero.
  ClockAnchor start(const RecordingOptions& options);
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

  /// Times the device too, from now on or from when it is attached. May block in the driver.
  void start_device_timing(const cuda::DeviceTiming::Options& options);

  uint64_t run_id() const { return run_id_; }
  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  /// What ended the writing of history, or empty; also once the recording has stopped.
  std::string error() const;
  /// The log of a recording in memory. Of one whose file failed: all but the history. Once the
  /// recording has stopped, the memory is given back with it: a second call has nothing.
  std::vector<uint8_t> log_bytes();

  /// From here on what goes to the log is kept for `take_subscription` too, with the tables as they
  /// stand. Returns the number of the subscription: each of several readers has its own.
  uint64_t open_subscription();
  /// What is new since the last call, as LogSubscription has it. Also once after `stop`.
  std::vector<uint8_t> take_subscription(uint64_t number);
  void close_subscription(uint64_t number);

  DropCounters& drops() { return drops_; }
  const Clock& clock() const { return clock_; }
  void wake() { harvester_.wake(); }

 private:
  void turn(uint64_t number, bool asked);
  uint64_t activity() const;
  bool is_waiting() const;
  bool rest();
  void last_turn(uint64_t number);
  bool harvest_until(Harvester::Deadline deadline);
  static bool has_room();
  /// Takes the times that became known on the device. False where memory was short.
  bool harvest(Occasion occasion, const cuda::DeviceTiming::Findings& findings = {});
  void collect(Occasion occasion, const cuda::DeviceTiming::Findings& findings);
  void write(Harvest& harvest);
  void write_copy(RunLog& log, Part::Copy copy);
  void write_end(RunLog& log, const RunState& state);

  const std::vector<Part*> parts_ = make_parts();
  std::atomic<bool> recording_{false};
  uint32_t epoch_ = 0;
  uint64_t run_id_ = 0;
  Clock clock_;
  DropCounters drops_;
  Harvester harvester_;

  // Under harvest_mutex_.
  mutable std::mutex harvest_mutex_;
  uint64_t activity_ = 0;       ///< when the last harvest began
  int64_t harvest_due_ns_ = 0;  ///< then there is another one, even if nothing is new
  uint64_t recordings_ = 0;     ///< so far
  std::map<uint64_t, LogSubscription> subscriptions_;  ///< outlive the log that writes to them
  uint64_t subscriptions_opened_ = 0;                  ///< so far
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<RunLog> log_;
  bool in_memory_ = false;
  RunState last_state_;
  ClockAnchor anchor_{};
  std::unique_ptr<uint8_t[]> reserve_;  ///< memory for the last harvest
  int64_t heartbeat_ns_ = 0;            ///< when STATE was last written
  int64_t statistics_written_ns_ = 0;   ///< likewise
  int64_t statistics_cost_ns_ = 0;
  uint64_t harvester_cpu_ns_ = 0;
  int64_t cpu_time_due_ns_ = 0;  ///< when it is read again
  int reported_error_ = 0;       ///< of the recording or, until the next begins, of the last one
};

}  // namespace pig
