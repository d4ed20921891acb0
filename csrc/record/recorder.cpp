// SPDX-License-Identifier: Apache-2.0
#include "record/recorder.h"

#include <pthread.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "base/throwing.h"
#include "hot/active_recording.h"
#include "hot/thread_state.h"
#include "record/module_times.h"
#include "record/thread_registry.h"

namespace pig {
namespace {

using std::chrono::steady_clock;

/// Leaked: threads that end after static destruction still find it.
Recorder* recorder = new Recorder;

/// Turns in which nothing is new give a heartbeat no more often than this: about each regular
/// tick.
constexpr int64_t kHeartbeatNs = std::chrono::nanoseconds(Harvester::kTick).count() / 2;
/// Reading a thread's CPU time is a system call.
constexpr int64_t kCpuTimeIntervalNs = 1'000'000'000;
/// What a program that does nothing may still have due: once a second.
constexpr int64_t kHarvestIntervalNs = 1'000'000'000;
/// Of memory, for the spans of a few full rings and the blocks that are written.
constexpr size_t kHarvestBytes = 2 << 20;
/// For the statistics of some thousand phases, as they are written at the end.
constexpr size_t kReserveBytes = 4 << 20;
constexpr int64_t kStatisticsIntervalNs = 1'000'000'000;
/// Dozens of readings of clocks.
constexpr int64_t kAnchorIntervalNs = 1'000'000'000;
constexpr std::chrono::milliseconds kDevicePoll{1};
/// For how long `stop` waits for a driver that blocks, and for a device that has not finished.
constexpr std::chrono::milliseconds kDriverPatience{1000};
constexpr std::chrono::milliseconds kFlushPatience{100};

uint64_t thread_cpu_ns() { return static_cast<uint64_t>(read_clock_ns(CLOCK_THREAD_CPUTIME_ID)); }

uint64_t random_id() {
  uint64_t id = 0;
  if (getrandom(&id, sizeof id, GRND_NONBLOCK) != sizeof id) id = read_ticks();
  return id;
}

}  // namespace

Recorder& Recorder::instance() { return *recorder; }

void wake_harvester() { recorder->wake(); }

void Recorder::install_fork_handler() {
  pthread_atfork(nullptr, nullptr, [] {
    active_epoch.store(0, std::memory_order_relaxed);
    open_step.store(kNoOpenStep, std::memory_order_relaxed);
    boundary_listener.store(nullptr, std::memory_order_relaxed);
    PhaseTable::instance().after_fork_in_child();
    ThreadRegistry::forget_this_thread_in_child();
    cuda::DeviceTiming::after_fork_in_child();
    forget_backward_passes_in_child();
    if (recorder->storage_) recorder->storage_->abandon();
    for (Part* part : recorder->parts_) part->abandon();
    // Recordings go on being counted: a token of the parent's must not fit one of the child's.
    const uint32_t epoch = recorder->epoch_;
    recorder = new Recorder;
    recorder->epoch_ = epoch;
  });
}

ClockAnchor Recorder::start(const RecordingOptions& options) {
  if (recording()) throw std::logic_error("a recording is active");
  std::unique_ptr<Storage> storage;
  if (options.path) {
    storage = std::make_unique<FileStorage>(*options.path, options.overwrite);
  } else {
    storage = std::make_unique<MemoryStorage>(/*keeps_descriptor=*/true);
  }
  // Of a recording that can't begin, nothing stays: neither its file, which would be in the way of
  // the next one, nor the lock on it.
  struct Undo {
    Recorder& recorder;
    std::unique_ptr<Storage>& storage;
    bool has_begun = false;
    ~Undo() {
      if (has_begun) return;
      if (storage) {
        storage->discard();
        return;
      }
      const std::lock_guard lock(recorder.harvest_mutex_);
      recorder.storage_->discard();
      recorder.log_.reset();
      recorder.storage_.reset();
    }
  } undo{*this, storage};
  run_id_ = random_id();
  clock_.start();
  drops_.clear();
  ClockAnchor anchor{};
  uint64_t number = 0;
  {
    const std::lock_guard lock(harvest_mutex_);
    number = ++recordings_;
    log_ = std::make_unique<RunLog>(*storage, run_id_, options.history_spans, options.max_bytes);
    storage_ = std::move(storage);
    subscriptions_.clear();
    in_memory_ = !options.path;
    harvester_cpu_ns_ = 0;
    cpu_time_due_ns_ = 0;
    reported_error_ = 0;
    statistics_written_ns_ = 0;
    statistics_cost_ns_ = 0;
    heartbeat_ns_ = 0;
    harvest_due_ns_ = 0;
    for (Part* part : parts_) part->reset({clock_, drops_, options, run_id_});
    write_copy(*log_, Part::Copy::kAllButHistory);
    anchor = anchor_ = clock_.anchor();
    RunState state;
    state.now_ns = anchor.run_ns;
    state.anchor = anchor;
    log_->write_state(state, drops_, *log_);
    log_->end_writes();
    if (const int error = log_->error())
      throw std::system_error(error, std::generic_category(), "write");
  }
  harvester_.start([this, number](bool asked) { turn(number, asked); },
                   [this, number] { last_turn(number); });
  undo.has_begun = true;
  try_allocating([this] { reserve_.reset(new uint8_t[kReserveBytes]); });  // touches none of it
  if (++epoch_ == 0) ++epoch_;
  recording_.store(true, std::memory_order_relaxed);
  active_epoch.store(epoch_, std::memory_order_release);
  return anchor;
}

void Recorder::close_gate() {
  cuda::DeviceTiming::instance().stop();
  active_epoch.store(0, std::memory_order_release);
  for (Part* part : parts_) part->close();
}

void Recorder::stop() {
  if (!recording()) return;
  cuda::DeviceTiming& timing = cuda::DeviceTiming::instance();
  if (!harvester_.stop(steady_clock::now() + kDriverPatience, [&] { return timing.asking(); }) ||
      timing.is_one_away())
    timing.warn_of_blocked_driver();
  const std::lock_guard lock(harvest_mutex_);
  ++recordings_;  // a harvester that was given up finds another number
  if (!harvest(Occasion::kEnd)) {
    // The second one has less to write: no history.
    reserve_.reset();
    if (!harvest(Occasion::kEnd))
      try_allocating([this] { log_->write_state(last_state_, drops_, *log_); });  // says why
  }
  reserve_.reset();
  timing.finish();
  storage_->abandon();
  recording_.store(false, std::memory_order_relaxed);
}

void Recorder::harvest_now() { harvest_until(steady_clock::now() + kDriverPatience); }

bool Recorder::flush(std::chrono::nanoseconds timeout) {
  const auto begin = steady_clock::now();
  const auto deadline = begin + timeout;
  while (!harvest_until(std::max(deadline, begin + kFlushPatience))) {
    if (steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kDevicePoll);
  }
  return true;
}

/// Returns whether no device time is outstanding.
bool Recorder::harvest_until(Harvester::Deadline deadline) {
  const bool turned =
      cuda::DeviceTiming::instance().attached() && harvester_.wait_for_turn(deadline);
  // Under the lock: the recording may be stopped, and its log taken away, while this waits for it.
  const std::lock_guard lock(harvest_mutex_);
  if (!recording()) return true;
  if (!turned && has_room()) harvest(Occasion::kAsked);
  return !is_waiting();
}

void Recorder::turn(uint64_t number, bool asked) {
  const bool fits = try_allocating([&] {
    cuda::DeviceTiming::Findings findings;
    cuda::DeviceTiming::instance().harvest(findings, false);
    const std::lock_guard lock(harvest_mutex_);
    if (number != recordings_) return;
    for (Part* part : parts_) part->tick();
    if (!asked && findings.empty() && rest()) return;
    if (findings.empty() && !has_room()) return;
    const int64_t now_ns = clock_.to_ns(read_ticks());
    if (asked || now_ns >= cpu_time_due_ns_) {
      harvester_cpu_ns_ = thread_cpu_ns();
      cpu_time_due_ns_ = now_ns + kCpuTimeIntervalNs;
    }
    harvest(asked ? Occasion::kAsked : Occasion::kTick, findings);
  });
  if (!fits) drops_.add(Drop::kNoMemory);
}

/// Another number whenever what a tick writes may have changed, but for what devices have done.
uint64_t Recorder::activity() const {
  uint64_t sum = drops_.total() << 32;
  for (const Part* part : parts_) sum += part->activity();
  return sum;
}

bool Recorder::is_waiting() const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [](const Part* part) { return part->is_waiting(); });
}

/// A tick in which nothing is new only gives a heartbeat. Most ticks of many programs are of
/// this kind, and others have had the caches since the last one, so this touches as little memory
/// as it can. Returns whether that was all.
bool Recorder::rest() {
  clock_.discipline();
  // Before what may have changed: what had ended by then is in the log.
  const int64_t now_ns = clock_.to_ns(read_ticks());
  if (now_ns >= harvest_due_ns_ || is_waiting() || activity() != activity_) return false;
  // Live sinks wait for heartbeats, also where the clock stands still, as it does in tests.
  if (subscriptions_.empty() && now_ns - heartbeat_ns_ < kHeartbeatNs) return true;
  if (!log_->repeat_tick(now_ns)) return false;
  log_->end_writes();
  heartbeat_ns_ = last_state_.now_ns = now_ns;
  return true;
}

/// Gives the device time to finish what it was asked to time, and the clocks some turns for a last
/// correlation.
void Recorder::last_turn(uint64_t number) {
  constexpr int kCorrelationTurns = 40;
  // What is left of the patience is for the driver.
  const auto deadline = steady_clock::now() + kDriverPatience * 9 / 10;
  cuda::DeviceTiming& timing = cuda::DeviceTiming::instance();
  {
    const std::lock_guard lock(harvest_mutex_);
    if (number == recordings_) harvester_cpu_ns_ = thread_cpu_ns();
  }
  if (!timing.attached()) return;
  timing.correlate_soon();
  const bool fits = try_allocating([&] {
    for (int turns = 0;; ++turns) {
      const bool is_late = steady_clock::now() >= deadline;
      const bool may_correlate = turns < kCorrelationTurns;
      cuda::DeviceTiming::Findings findings;
      timing.harvest(findings, is_late || !may_correlate);
      {
        const std::lock_guard lock(harvest_mutex_);
        if (number != recordings_) return;
        harvest(Occasion::kTick, findings);
        const bool correlating = may_correlate && findings.correlating;
        if (is_late || (!correlating && !is_waiting())) return;
      }
      std::this_thread::sleep_for(kDevicePoll);
    }
  });
  if (!fits) drops_.add(Drop::kNoMemory);
}

void Recorder::start_device_timing(const cuda::DeviceTiming::Options& options) {
  cuda::DeviceTiming& timing = cuda::DeviceTiming::instance();
  {
    const std::lock_guard lock(harvest_mutex_);
    if (!recording() || !timing.start(options, clock_, drops_, wake_harvester)) return;
  }
  timing.open_gate();
}

std::string Recorder::error() const {
  const std::lock_guard lock(harvest_mutex_);
  const int error = log_ ? log_->error() : reported_error_;
  return error != 0 ? storage_error_text(error) : std::string();
}

std::vector<uint8_t> Recorder::log_bytes() {
  const std::lock_guard lock(harvest_mutex_);
  if (!log_) return {};
  MemoryStorage copy;
  const MemoryStorage* memory = &copy;
  if (in_memory_) {
    memory = static_cast<const MemoryStorage*>(storage_.get());
  } else {
    RunLog log(copy, run_id_, 0, ~uint64_t{0});
    write_copy(log, Part::Copy::kAllButHistory);
    write_end(log, last_state_);
  }
  std::vector<uint8_t> bytes(memory->size());
  memory->read(bytes.data());
  if (recording()) return bytes;
  log_.reset();
  storage_.reset();
  return bytes;
}

uint64_t Recorder::open_subscription() {
  const std::lock_guard lock(harvest_mutex_);
  if (!recording()) return 0;
  LogSubscription& subscription = subscriptions_[++subscriptions_opened_];
  log_->open_subscription(subscription,
                          [this](RunLog& log) { write_copy(log, Part::Copy::kTables); });
  if (has_room()) harvest(Occasion::kAsked);
  return subscriptions_opened_;
}

std::vector<uint8_t> Recorder::take_subscription(uint64_t number) {
  const std::lock_guard lock(harvest_mutex_);
  const auto subscription = subscriptions_.find(number);
  return subscription == subscriptions_.end() ? std::vector<uint8_t>()
                                              : subscription->second.take();
}

void Recorder::close_subscription(uint64_t number) {
  const std::lock_guard lock(harvest_mutex_);
  const auto subscription = subscriptions_.find(number);
  if (subscription == subscriptions_.end()) return;
  if (log_) log_->remove_subscription(&subscription->second);
  subscriptions_.erase(subscription);
}

/// Whether a harvest will find the memory that it usually takes. Otherwise nothing is taken out of
/// the rings: when they are full their threads fold the spans.
bool Recorder::has_room() { return may_throw() && has_memory(kHarvestBytes); }

/// Where memory is short after all, it is not known how far the log got, so its history ends there.
bool Recorder::harvest(Occasion occasion, const cuda::DeviceTiming::Findings& findings) {
  if (try_allocating([&] { collect(occasion, findings); })) return true;
  drops_.add(Drop::kNoMemory);
  log_->end_history(ENOMEM);
  return false;
}

void Recorder::collect(Occasion occasion, const cuda::DeviceTiming::Findings& findings) {
  Harvest harvest{occasion, findings, *log_};
  RunState& state = harvest.state;
  clock_.discipline();
  state.final = harvest.final();
  state.harvester_cpu_ns = harvester_cpu_ns_;
  // Before anything is taken: what had ended by then is in it. What has begun after that time is
  // left out, and then the next tick has to look again.
  state.now_ns = clock_.to_ns(read_ticks());
  activity_ = activity();
  harvest_due_ns_ = 0;  // until all of it is written
  for (Part* part : parts_) part->take(harvest);
  for (Part* part : parts_) part->drain(harvest);
  if (state.final || state.now_ns - anchor_.run_ns >= kAnchorIntervalNs) anchor_ = clock_.anchor();
  state.anchor = anchor_;
  write(harvest);
  if (!harvest.is_whole) harvest_due_ns_ = 0;
  last_state_ = std::move(state);
  if (log_->error() != 0 && reported_error_ == 0) {
    reported_error_ = log_->error();
    notify(Notice::kHistoryStopped);
  }
}

/// A turn that was woken early and has nothing new writes nothing.
void Recorder::write(Harvest& harvest) {
  const int64_t now_ns = harvest.state.now_ns;
  if (harvest.final()) {
    write_end(*log_, harvest.state);
    return log_->end_writes();
  }
  // Tens of thousands of paths take long to write: then less often.
  const int64_t age_ns = now_ns - statistics_written_ns_;
  const bool may_be_written = age_ns >= 100 * statistics_cost_ns_;
  const bool are_old = may_be_written && age_ns >= kStatisticsIntervalNs;
  // Live sinks hand a step over once they have had two updates since its end.
  const bool is_due = !subscriptions_.empty() || now_ns - heartbeat_ns_ >= kHeartbeatNs;
  const bool is_written = harvest.occasion == Occasion::kAsked || is_due || are_old ||
                          harvest.is_urgent || log_->has_news();
  if (is_written) {
    log_->write_tick(harvest.state, drops_);
    heartbeat_ns_ = now_ns;
  }
  // What has overflowed, and what has left the history since, is nowhere else in the file. They are
  // written after what they count: a process killed in between has spans above its statistics.
  const auto is_outgrown = [this] {
    return std::any_of(parts_.begin(), parts_.end(),
                       [this](const Part* part) { return part->has_outgrown(*log_); });
  };
  const bool are_due = are_old || (may_be_written && is_outgrown());
  if (are_due) log_->flush_slow();
  const uint64_t cpu_before_ns = are_due ? thread_cpu_ns() : 0;
  for (Part* part : parts_) part->write_statistics(*log_, are_due);
  if (are_due) {
    statistics_cost_ns_ = static_cast<int64_t>(thread_cpu_ns() - cpu_before_ns);
    statistics_written_ns_ = now_ns;
  }
  if (is_written && !is_outgrown()) harvest_due_ns_ = now_ns + kHarvestIntervalNs;
  log_->end_writes();
}

void Recorder::write_copy(RunLog& log, Part::Copy copy) {
  for (Part* part : parts_) part->write_copy(log, copy);
}

void Recorder::write_end(RunLog& log, const RunState& state) {
  log.flush();
  for (Part* part : parts_) part->write_statistics(log, /*is_due=*/true);
  // Last: a STATE that says "final" then vouches for all the rest. With the losses of the file,
  // also where `log` is its stand-in in memory.
  log.write_state(state, drops_, *log_);
}

}  // namespace pig
