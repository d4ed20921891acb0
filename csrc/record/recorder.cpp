// SPDX-License-Identifier: Apache-2.0
#include "record/recorder.h"

#include <link.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "base/throwing.h"
#include "hot/border_listener.h"
#include "record/module_times.h"

namespace pig {
namespace {

using std::chrono::steady_clock;

/// Leaked: threads that end after static destruction still find it.
Recorder* recorder = new Recorder;

/// Turns in which nothing is new give a sign of life no more often than this: about each regular
/// tick.
constexpr int64_t kSignOfLifeNs = std::chrono::nanoseconds(Harvester::kTick).count() / 2;
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
/// Then after twice as long each time: what is known of a program seldom changes later.
constexpr int64_t kFirstFactsNs = 1'000'000'000;
/// As docs/profiling.md has it.
constexpr char kControlSuffix[] = ".control";
constexpr int64_t kRequestIntervalNs = 1'000'000'000;
/// Looking for the driver goes through all libraries that are loaded. It is done this often, and at
/// first more often: after a sixteenth of the time that has passed.
constexpr int64_t kDriverIntervalNs = 1'000'000'000;
constexpr int64_t kDriverShare = 16;
/// Of a path in a sentence.
constexpr size_t kMaxPathParts = 8;
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

void Recorder::install_fork_handler() {
  pthread_atfork(nullptr, nullptr, [] {
    active_epoch.store(0, std::memory_order_relaxed);
    open_step.store(kNoOpenStep, std::memory_order_relaxed);
    border_listener.store(nullptr, std::memory_order_relaxed);
    PhaseTable::instance().after_fork_in_child();
    ThreadRegistry::forget_this_thread_in_child();
    cuda::DeviceTiming::after_fork_in_child();
    forget_backward_passes_in_child();
    if (recorder->log_) recorder->log_->storage().abandon();
    // Recordings go on being counted: a token of the parent's must not fit one of the child's.
    const uint32_t epoch = recorder->epoch_;
    recorder = new Recorder;
    recorder->epoch_ = epoch;
  });
}

ClockAnchor Recorder::start(const Options& options) {
  if (recording()) throw std::logic_error("a recording is active");
  std::unique_ptr<Storage> storage;
  if (options.path) {
    storage = std::make_unique<FileStorage>(*options.path, options.overwrite);
  } else {
    storage = std::make_unique<MemoryStorage>(/*keeps_descriptor=*/true);
  }
  run_id_ = random_id();
  clock_.start();
  drops_.clear();
  paths_.reset();
  is_closing_.store(false);
  steps_.reset(&clock_, &drops_);
  overflow_.reset(&clock_, &steps_, &drops_);
  syncs_.reset(&clock_);
  threads_.reset();
  metrics_.reset();
  collectives_.reset();
  stalls_.reset();
  ClockAnchor anchor{};
  uint64_t number = 0;
  {
    const std::lock_guard lock(harvest_mutex_);
    number = ++recordings_;
    log_ = std::make_unique<RunLog>(std::move(storage), run_id_, options.history_spans,
                                    options.max_bytes);
    taps_.clear();
    in_memory_ = !options.path;
    statistics_.clear();
    spans_recorded_ = 0;
    device_time_join_.reset(&drops_);
    harvester_cpu_ns_ = 0;
    cpu_time_due_ns_ = 0;
    reported_error_ = 0;
    statistics_written_ns_ = 0;
    statistics_cost_ns_ = 0;
    statistics_spans_ = 0;
    has_overflowed_ = false;
    facts_due_ns_ = kFirstFactsNs;
    watchdog_.reset(options.watchdog_ns);
    newest_collective_ns_ = 0;
    control_path_ = options.path ? *options.path + kControlSuffix : std::string();
    request_due_ns_ = kRequestIntervalNs;
    anchor = anchor_ = clock_.anchor();
    RunState state;
    state.now_ns = anchor.run_ns;
    state.anchor = anchor;
    {
      const std::lock_guard documents_lock(documents_mutex_);
      documents_.clear();
    }
    set_document(BlockType::kEnvironment, options.environment);
    write_documents(*log_, Documents::kChanged);
    log_->write_state(state, drops_, *log_);
    log_->end_writes();
    sign_of_life_ns_ = 0;
    harvest_due_ns_ = 0;
    driver_due_ns_ = 0;
    libraries_seen_ = 0;
    driver_is_loaded_ = false;
    if (const int error = log_->error()) {
      log_.reset();  // and with it the lock on the file
      throw std::system_error(error, std::generic_category(), "write");
    }
  }
  try {
    harvester_.start([this, number](bool asked) { turn(number, asked); },
                     [this, number] { last_turn(number); });
  } catch (const std::system_error&) {
    log_.reset();
    throw;
  }
  try_allocating([this] { reserve_.reset(new uint8_t[kReserveBytes]); });  // touches none of it
  if (++epoch_ == 0) ++epoch_;
  recording_.store(true, std::memory_order_relaxed);
  active_epoch.store(epoch_, std::memory_order_release);
  return anchor;
}

void Recorder::close_gate() {
  cuda::DeviceTiming::instance().stop();
  is_closing_.store(true);
  steps_.end_open();
  active_epoch.store(0, std::memory_order_release);
  threads_.run_requests();
}

void Recorder::stop() {
  if (!recording()) return;
  cuda::DeviceTiming& timing = cuda::DeviceTiming::instance();
  if (!harvester_.stop(steady_clock::now() + kDriverPatience, [&] { return timing.asking(); }))
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
  log_->storage().abandon();
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
  return !device_time_join_.waiting();
}

void Recorder::turn(uint64_t number, bool asked) {
  const bool fits = try_allocating([&] {
    cuda::DeviceTiming::Findings findings;
    cuda::DeviceTiming::instance().harvest(findings, false);
    const std::lock_guard lock(harvest_mutex_);
    if (number != recordings_) return;
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
  const uint64_t changes = steps_.changes() + paths_.size() + metrics_.size() + syncs_.changes() +
                           drops_.total() + handed_in_.load(std::memory_order_acquire);
  return threads_.activity() + (changes << 32);
}

/// A tick in which nothing is new only gives a sign of life. Most ticks of many programs are of
/// this kind, and others have had the caches since the last one, so this touches as little memory
/// as it can. Returns whether that was all.
bool Recorder::rest() {
  clock_.discipline();
  // Before what may have changed: what had ended by then is in the log.
  const int64_t now_ns = clock_.to_ns(read_ticks());
  if (now_ns >= harvest_due_ns_ || device_time_join_.waiting() || activity() != activity_)
    return false;
  // Live sinks wait for signs of life, also where the clock stands still, as it does in tests.
  if (taps_.empty() && now_ns - sign_of_life_ns_ < kSignOfLifeNs) return true;
  if (!log_->repeat_tick(now_ns)) return false;
  log_->end_writes();
  sign_of_life_ns_ = last_state_.now_ns = now_ns;
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
        if (is_late || (!correlating && !device_time_join_.waiting())) return;
      }
      std::this_thread::sleep_for(kDevicePoll);
    }
  });
  if (!fits) drops_.add(Drop::kNoMemory);
}

void Recorder::set_document(BlockType type, std::string json) {
  const std::lock_guard lock(documents_mutex_);
  documents_[type] = {std::move(json), true};
  handed_in_.fetch_add(1, std::memory_order_release);
}

void Recorder::write_documents(RunLog& log, Documents which) {
  std::vector<std::pair<BlockType, std::string>> due;
  {
    const std::lock_guard lock(documents_mutex_);
    for (auto& [type, document] : documents_) {
      if (which == Documents::kChanged && !std::exchange(document.changed, false)) continue;
      due.emplace_back(type, document.json);
    }
  }
  for (const auto& [type, json] : due) log.write_json(type, json);
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
  std::unique_ptr<RunLog> copy;
  RunLog* log = log_.get();
  if (!in_memory_) {
    copy = std::make_unique<RunLog>(std::make_unique<MemoryStorage>(), run_id_, 0, ~uint64_t{0});
    log = copy.get();
    LogTables tables = tables_since({});
    tables.metric_names.clear();  // their values are history
    log->append_tables(tables);
    log->append_dropped_steps(steps_.dropped());
    write_end(*log, last_state_);
    write_documents(*log, Documents::kAll);
  }
  const auto& memory = static_cast<const MemoryStorage&>(log->storage());
  std::vector<uint8_t> bytes(memory.size());
  memory.read(bytes.data());
  if (!recording()) log_.reset();
  return bytes;
}

uint64_t Recorder::open_tap() {
  const std::lock_guard lock(harvest_mutex_);
  if (!recording()) return 0;
  LogTap& tap = taps_[++taps_opened_];
  log_->add_tap(tap, tables_since({}), steps_.dropped());
  if (has_room()) harvest(Occasion::kAsked);
  return taps_opened_;
}

std::vector<uint8_t> Recorder::take_tap(uint64_t number) {
  const std::lock_guard lock(harvest_mutex_);
  const auto tap = taps_.find(number);
  return tap == taps_.end() ? std::vector<uint8_t>() : tap->second.take();
}

void Recorder::close_tap(uint64_t number) {
  const std::lock_guard lock(harvest_mutex_);
  const auto tap = taps_.find(number);
  if (tap == taps_.end()) return;
  if (log_) log_->remove_tap(tap->second);
  taps_.erase(tap);
}

void Recorder::harvest_statistics() {
  {
    const std::lock_guard lock(harvest_mutex_);
    statistics_asked_ = true;
  }
  harvest_now();
}

void Recorder::append_reading(uint64_t update, const std::vector<MetricValue>& values) {
  if (active_epoch.load(std::memory_order_relaxed) == 0) return;
  const int64_t now_ns = clock_.to_ns(read_ticks());
  for (const auto& [name, value, step] : values)
    if (!metrics_.append(name, update, now_ns, value, step)) drops_.add(Drop::kMetrics);
}

size_t Recorder::append_collectives(std::span<const uint8_t> items) {
  const size_t count = collectives_.append(items);
  if (count != 0) handed_in_.fetch_add(1, std::memory_order_release);
  return count;
}

ThreadState* Recorder::attach(uint32_t epoch, std::string thread_name) {
  return threads_.attach({&paths_, &drops_, &overflow_, wake_harvester}, epoch,
                         {static_cast<uint64_t>(gettid()), std::move(thread_name)});
}

void Recorder::begin_scratch() {
  scratch_ = std::make_unique<Scratch>();
  scratch_->steps.reset(&clock_, &scratch_->drops, /*published=*/false);
  scratch_->state.reset({&scratch_->paths, &scratch_->drops, nullptr, wake_harvester}, epoch_,
                        kMaxThreads - 1);
  set_aside_ = std::exchange(this_thread, &scratch_->state);
}

void Recorder::end_scratch() {
  this_thread = set_aside_;
  scratch_.reset();
}

void Recorder::wake_harvester() { recorder->harvester_.wake(); }

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
  const bool final = occasion == Occasion::kEnd;
  clock_.discipline();
  items_.clear();
  RunState state;
  state.final = final;
  // Before the rings and the steps: what had ended by then is in them.
  state.now_ns = clock_.to_ns(read_ticks());
  activity_ = activity();
  harvest_due_ns_ = 0;  // until all of it is written
  pin_events_in_use();
  for (ThreadState* thread : threads_.states()) drain(*thread);

  // All that refers to paths and threads is collected before these are written. What has begun
  // after that time is left out: then the next tick has to look again.
  bool is_whole = collect_open_frames(state);
  // Before the steps: a value's step has an index once all that were dropped before it are known.
  const std::vector<MetricItem> metrics = metrics_.take();
  const StepTracker::Pending steps = steps_.take();
  if (const auto& open = steps.open) {
    const int64_t begin_ns = clock_.to_ns(open->begin_ticks);
    if (begin_ns <= state.now_ns) {
      state.open_step = {open->serial, open->thread, begin_ns, -1, open->samples, open->items, 0};
    } else {
      is_whole = false;
    }
  }
  const std::vector<SyncItem> syncs = syncs_.take();
  log_->append_tables(tables_since(log_->counts()));
  log_->append_spans(items_);
  settle_device_times(occasion, state.now_ns, findings);
  log_->append_dropped_steps(steps.dropped);
  log_->append(steps.steps);
  log_->append(metrics);
  log_->append(syncs);
  const std::vector<CollectiveItem> collectives = collectives_.take();
  log_->append(collectives);
  if (final || state.now_ns - anchor_.run_ns >= kAnchorIntervalNs) anchor_ = clock_.anchor();
  state.anchor = anchor_;

  const cuda::DeviceTiming& timing = cuda::DeviceTiming::instance();
  if (timing.records() != 0) {
    const auto pending = device_time_join_.waiting_by_path();
    state.device = {
        timing.every(), timing.records(), timing.record_ns(), {pending.begin(), pending.end()}};
  }

  if (!final) look_for_stall(state, collectives);
  write_documents(*log_, Documents::kChanged);
  write(occasion, state);
  if (!is_whole) harvest_due_ns_ = 0;
  last_state_ = std::move(state);
  if (log_->error() != 0 && reported_error_ == 0) {
    reported_error_ = log_->error();
    notify(Notice::kHistoryStopped);
  }
  if (!final && last_state_.now_ns >= facts_due_ns_) {
    facts_due_ns_ = 2 * last_state_.now_ns;
    notify(Notice::kProgramFacts);
  }
  if (!final && !control_path_.empty() && last_state_.now_ns >= request_due_ns_) {
    request_due_ns_ = last_state_.now_ns + kRequestIntervalNs;
    struct stat status;
    if (lstat(control_path_.c_str(), &status) == 0) notify(Notice::kRequest);
  }
}

void Recorder::look_for_stall(const RunState& state,
                              const std::vector<CollectiveItem>& collectives) {
  for (const CollectiveItem& item : collectives)
    newest_collective_ns_ = std::max(newest_collective_ns_, item.created_ns);
  // First: what is read before the recording ends by itself is the program's doing.
  const uint64_t step_changes = steps_.changes();
  if (is_closing_.load()) return;
  const Watchdog::Change change = watchdog_.look(
      state.now_ns,
      {step_changes, spans_recorded_, newest_collective_ns_, state.open_step.has_value()}, [this] {
        const auto [count, p99_ns] = steps_.usual_ns();
        return Watchdog::StepTimes{count, static_cast<int64_t>(p99_ns)};
      });
  if (change == Watchdog::Change::kEnded) stalls_.end(state.now_ns);
  if (change != Watchdog::Change::kBegan) return;
  StallLog::Place place{state.open_step ? steps_.index_of(state.open_step->serial) : -1, {}};
  for (const RunState::Open& frame : state.open) {
    // The frames of a thread come together, from the outermost in.
    if (!place.paths.empty() && place.paths.back().first == frame.thread) place.paths.pop_back();
    place.paths.emplace_back(frame.thread, frame.path);
  }
  if (state.open_step) {  // what its own thread does comes first
    const auto its = std::find_if(place.paths.begin(), place.paths.end(), [&](const auto& open) {
      return open.first == state.open_step->thread;
    });
    if (its != place.paths.end()) std::iter_swap(place.paths.begin(), its);
  }
  std::string sentence = sentence_of_stall(place);
  stalls_.begin(watchdog_.stall(), std::move(place), std::move(sentence));
  notify(Notice::kStall);
}

std::string Recorder::sentence_of_stall(const StallLog::Place& place) const {
  const auto text = [](int64_t ns) {
    if (ns >= 10'000'000'000) return std::to_string(ns / 1'000'000'000) + " s";
    if (ns >= 10'000'000) return std::to_string(ns / 1'000'000) + " ms";
    return std::to_string(ns / 1'000) + " us";
  };
  const Watchdog::Stall& stall = watchdog_.stall();
  std::string sentence = "no step has begun or ended for " +
                         text(stall.noticed_ns - stall.since_ns) + " (99 % of steps took at most " +
                         text(stall.p99_ns) + "): ";
  const bool in_step = place.step >= 0;
  if (!place.paths.empty()) sentence += "in " + path_text(place.paths.front().second) + ", ";
  return sentence + (in_step ? "step " + std::to_string(place.step) : "between steps");
}

std::string Recorder::path_text(uint32_t path) const {
  const std::vector<PathTable::Path> paths = paths_.since(0);
  std::string text;
  for (size_t parts = 0; path < paths.size() && parts < kMaxPathParts; ++parts) {
    text = PhaseTable::instance().name(paths[path].phase) + (text.empty() ? "" : "/") + text;
    path = paths[path].parent;
  }
  return text;
}

/// A turn that was woken early and has nothing new writes nothing.
void Recorder::write(Occasion occasion, RunState& state) {
  const int64_t now_ns = state.now_ns;
  const uint64_t overflowed = overflow_.take(statistics_);
  spans_recorded_ += overflowed;
  has_overflowed_ = has_overflowed_ || overflowed != 0;
  state.phases_recorded = spans_recorded_;
  state.harvester_cpu_ns = harvester_cpu_ns_;
  const bool watch_changed = syncs_.take_watch_change();
  if (occasion == Occasion::kEnd) {
    write_end(*log_, state);
  } else {
    // Tens of thousands of paths take long to write: then less often.
    const int64_t age_ns = now_ns - statistics_written_ns_;
    const bool may_be_written = age_ns >= 100 * statistics_cost_ns_;
    const bool are_old = std::exchange(statistics_asked_, false) ||
                         (may_be_written && age_ns >= kStatisticsIntervalNs);
    // Live sinks hand a step over once they have heard of the recorder twice since its end.
    const bool is_due = !taps_.empty() || now_ns - sign_of_life_ns_ >= kSignOfLifeNs;
    const bool is_written =
        occasion == Occasion::kAsked || is_due || are_old || overflowed != 0 || log_->has_news();
    if (is_written) {
      log_->write_tick(state, drops_, *log_);
      sign_of_life_ns_ = now_ns;
    }
    // What has overflowed, and what has left the history since, is nowhere else in the file. They
    // are written after what they count: a process killed in between has spans above its
    // statistics.
    const auto lack_lost = [this] {
      return has_overflowed_ || log_->dropped_spans() > statistics_spans_;
    };
    if (are_old || (may_be_written && lack_lost())) {
      log_->settle_slow();
      const uint64_t cpu_before_ns = thread_cpu_ns();
      write_statistics(*log_);
      statistics_cost_ns_ = static_cast<int64_t>(thread_cpu_ns() - cpu_before_ns);
      statistics_written_ns_ = now_ns;
      statistics_spans_ = log_->spans();
      has_overflowed_ = false;
    } else if (watch_changed) {
      log_->write_sync_statistics(syncs_.encode_statistics(log_->syncs()));
    }
    if (is_written && !lack_lost()) harvest_due_ns_ = now_ns + kHarvestIntervalNs;
  }
  log_->end_writes();
}

void Recorder::drain(ThreadState& state) {
  // Before the ring is read: what the thread wrote before it ended is then seen.
  const bool finished = state.finished.load(std::memory_order_acquire);
  if (finished) state.run_requests();
  raw_.clear();
  events_.clear();
  state.ring().drain(raw_, events_);
  size_t folded = 0;
  const bool fits = try_allocating([&] {
    items_.reserve(items_.size() + raw_.size());
    auto events = events_.begin();
    for (const RawSpan& span : raw_) {
      const NanosecondSpan times = to_nanoseconds(clock_, span);
      statistics_.fold(steps_, span, times);
      ++folded;
      items_.push_back({times.begin, times.end, times.self, span.step(), span.path(),
                        state.serial(), static_cast<uint16_t>(span.depth()), span.flags()});
      if ((span.flags() & kDeviceTimed) == 0) continue;
      device_time_join_.add({log_->spans() + items_.size() - 1, events->begin, events->end,
                             span.step(), span.path(), span.flags()});
      ++events;
    }
  });
  if (!fits) drops_.add(Drop::kNoMemory, raw_.size() - folded);
  spans_recorded_ += folded;
  if (!finished) return;
  std::vector<OpenFrame> left_open;
  state.copy_open(left_open);
  drops_.add(Drop::kOpenAtThreadEnd, left_open.size());
  threads_.retire(&state);
}

void Recorder::pin_events_in_use() {
  const cuda::DeviceTiming& timing = cuda::DeviceTiming::instance();
  if (!timing.attached()) return;  // no frame has an event
  device_time_join_.begin(timing);
  std::vector<OpenFrame> frames;
  std::vector<cuda::EventRef> events;
  for (const ThreadState* thread : threads_.states()) {
    // First: what it has been replaced by then, stands in a frame or a span already.
    device_time_join_.pin(thread->event_in_hand());
    thread->copy_open(frames);
    if (ModuleStack* modules = thread->modules()) modules->copy_events(events);
  }
  for (const OpenFrame& frame : frames) device_time_join_.pin(frame.event);
  for (const cuda::EventRef event : events) device_time_join_.pin(event);
}

void Recorder::settle_device_times(Occasion occasion, int64_t now_ns,
                                   const cuda::DeviceTiming::Findings& findings) {
  const cuda::DeviceTiming& timing = cuda::DeviceTiming::instance();
  if (timing.attached()) join_device_times(occasion == Occasion::kEnd, findings);
  if (timing.has_warnings()) notify(Notice::kDeviceWarnings);
  if (!timing.wanted()) return;
  if (occasion != Occasion::kTick || now_ns >= driver_due_ns_) {
    look_for_driver();
    driver_due_ns_ = now_ns + std::min(kDriverIntervalNs, now_ns / kDriverShare);
  }
  if (driver_is_loaded_) notify(Notice::kDeviceProbe);
}

void Recorder::join_device_times(bool final, const cuda::DeviceTiming::Findings& findings) {
  const cuda::DeviceTiming& timing = cuda::DeviceTiming::instance();
  device_time_join_.know(findings.times);
  const DeviceTimeJoin::Settlement settlement = device_time_join_.settle(timing, final);
  std::vector<DeviceTimeItem> items;
  for (const auto& [span, item] : settlement.spans) {
    items.push_back(item);
    if (item.duration_ns >= 0)
      statistics_.fold_device(steps_, span.step, span.path, span.flags,
                              static_cast<uint64_t>(item.duration_ns));
  }
  std::vector<DeviceClockItem> clocks;
  for (const auto& [device, point] : findings.points)
    clocks.push_back(
        {static_cast<uint32_t>(device), 0, point.device_ns, point.run_ns, point.uncertainty_ns});
  log_->append(settlement.streams);
  log_->append(clocks);
  log_->append(items);
}

void Recorder::look_for_driver() {
  // The dynamic linker looks for it on the disk, so it is asked only once it has loaded more.
  unsigned long long libraries = 0;
  const auto count = [](dl_phdr_info* info, size_t, void* loaded) {
    *static_cast<unsigned long long*>(loaded) = info->dlpi_adds;
    return 1;  // the first one says it
  };
  dl_iterate_phdr(count, &libraries);
  if (std::exchange(libraries_seen_, libraries) != libraries)
    driver_is_loaded_ = cuda::driver_is_loaded();
}

bool Recorder::collect_open_frames(RunState& state) {
  std::vector<OpenFrame> frames;
  bool is_whole = true;
  for (const ThreadState* thread : threads_.states()) {
    frames.clear();
    thread->copy_open(frames);
    for (const OpenFrame& frame : frames) {
      const int64_t begin_ns = clock_.to_ns(frame.begin);
      if (begin_ns <= state.now_ns) {
        state.open.push_back({thread->serial(), frame.path, begin_ns, frame.step, frame.depth});
      } else {
        is_whole = false;
      }
    }
  }
  return is_whole;
}

LogTables Recorder::tables_since(const RunLog::Counts& counts) const {
  return {paths_.since(counts.paths), threads_.infos_since(counts.threads),
          metrics_.names_since(counts.metric_names), syncs_.sites_since(counts.sync_sites)};
}

void Recorder::write_statistics(RunLog& log) {
  std::vector<uint8_t> totals, rows;
  steps_.encode_totals(totals);
  statistics_.encode(steps_, rows);
  log.write_statistics(totals, rows);
  log.write_sync_statistics(syncs_.encode_statistics(log.syncs()));
}

void Recorder::write_end(RunLog& log, const RunState& state) {
  log.settle();
  write_statistics(log);
  // Last: a STATE that says "final" then vouches for all the rest. With the losses of the file,
  // also where `log` is its stand-in in memory.
  log.write_state(state, drops_, *log_);
}

}  // namespace pig
