// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cuda/device_timing.h"
#include "hot/active_recording.h"
#include "record/collective_series.h"
#include "record/documents.h"
#include "record/part.h"
#include "record/span_record.h"
#include "record/step_tracker.h"

namespace pig {

/// Notices that the program does nothing any more, for far longer than its steps take. It knows the
/// time only by being told, at each harvest: those come about once a second where nothing happens.
class Watchdog {
 public:
  static constexpr int64_t kStepTimes = 10;
  /// So much longer it waits until the first steps have ended.
  static constexpr int64_t kStartTimes = 3;
  /// A process that uses at least a tenth of a processor is at work, or spins: it may do so for ten
  /// times as long.
  static constexpr int64_t kBusyTimes = 10;
  /// Of the time between two looks so much counts: where it was longer, the whole process, or the
  /// machine, stood still.
  static constexpr int64_t kMostBetweenLooksNs = 5'000'000'000;

  /// What has happened so far.
  struct Progress {
    uint64_t changes;       ///< another number whenever the program has done something
    int64_t collective_ns;  ///< when the newest collective that is known was created
    uint64_t cpu_ns;        ///< of the process, as far as that means work
    bool in_step;
  };
  struct StepTimes {
    uint64_t count;    ///< of the steps that have ended
    int64_t usual_ns;  ///< most of them took at most this
  };
  struct Stall {
    int64_t since_ns;
    int64_t noticed_ns;
    int64_t limit_ns;
    int64_t usual_ns;
  };
  enum class Change { kNone, kBegan, kEnded };

  /// `limit_ns` is the least time; 0: nothing is reported.
  void reset(int64_t limit_ns) {
    *this = {};
    limit_ns_ = limit_ns;
  }

  /// Has a look at the time `now_ns`. `step_times` is asked once the time without progress has
  /// reached the least limit.
  template <typename Times>
  Change look(int64_t now_ns, const Progress& progress, Times step_times) {
    const int64_t since_look_ns = now_ns - looked_ns_;
    const bool is_busy =
        static_cast<int64_t>(progress.cpu_ns - last_.cpu_ns) * kBusyTimes > since_look_ns;
    const bool has_moved = progress.changes != last_.changes || progress.in_step != last_.in_step;
    looked_ns_ = now_ns;
    last_ = progress;
    if (is_busy || has_moved) active_ns_ = now_ns;
    if (has_moved) {
      since_ns_ = now_ns;
      return end();
    }
    quiet_ns_ +=
        std::clamp<int64_t>(since_look_ns, 0, kMostBetweenLooksNs) / (is_busy ? kBusyTimes : 1);
    if (progress.collective_ns > since_ns_) {
      // It is noticed late: what was created before that is not new.
      since_ns_ = progress.collective_ns;
      quiet_ns_ = std::min(quiet_ns_, std::max<int64_t>(0, now_ns - since_ns_));
      if (is_stalled_ && since_ns_ > stall_.noticed_ns) return end();
    }
    if (limit_ns_ == 0 || is_stalled_ || quiet_ns_ < limit_ns_) return Change::kNone;
    const StepTimes times = step_times();
    const bool is_start = times.count < StepTracker::kFirstSteps;
    const int64_t limit_ns =
        std::max({limit_ns_ * (is_start ? kStartTimes : 1), kStepTimes * times.usual_ns * !is_start,
                  2 * longest_ns_[progress.in_step]});
    if (quiet_ns_ < limit_ns) return Change::kNone;
    is_stalled_ = true;
    stalled_in_step_ = progress.in_step;
    stall_ = {since_ns_, now_ns, limit_ns, is_start ? 0 : times.usual_ns};
    return Change::kBegan;
  }

  /// The stall that was noticed last turned out to be none: the program has moved.
  void withdraw() {
    is_stalled_ = false;
    quiet_ns_ = 0;
    since_ns_ = active_ns_ = looked_ns_;
  }

  /// The one that was noticed last.
  const Stall& stall() const { return stall_; }
  /// When the program was last seen to do anything, CPU time included.
  int64_t active_ns() const { return std::max(active_ns_, since_ns_); }

 private:
  Change end() {
    const int64_t quiet_ns = std::exchange(quiet_ns_, 0);
    if (!std::exchange(is_stalled_, false)) return Change::kNone;
    // What went on by itself is normal here: then only what lasts twice as long is worth a word.
    int64_t& longest_ns = longest_ns_[stalled_in_step_];
    longest_ns = std::max(longest_ns, quiet_ns);
    return Change::kEnded;
  }

  int64_t limit_ns_ = 0;
  Progress last_{};
  int64_t looked_ns_ = 0;
  int64_t since_ns_ = 0;   ///< when something happened last, CPU time apart
  int64_t active_ns_ = 0;  ///< when it was last looked at and something had, CPU time included
  int64_t quiet_ns_ = 0;
  bool is_stalled_ = false;
  bool stalled_in_step_ = false;
  Stall stall_{};
  std::array<int64_t, 2> longest_ns_{};  ///< that ended: between steps, and inside of one
};

/// The newest stalls of one recording, as the STALLS document has them (docs/run-file.md). Any
/// thread; never waits for long.
class StallLog {
 public:
  static constexpr size_t kMost = 8;

  struct Place {
    int64_t step;                                      ///< its index; -1: none is open
    std::vector<std::pair<uint32_t, uint32_t>> paths;  ///< by thread its innermost open one
  };

  /// `publish` gets the document at each change, the changes of all threads in their order. A stall
  /// is in it once something is known of it, or nobody is waited for any more: until then it may
  /// turn out to be none.
  explicit StallLog(std::function<void(std::string)> publish) : publish_(std::move(publish)) {}

  void reset() {
    const std::lock_guard lock(mutex_);
    stalls_.clear();
    is_withdrawn_ = false;
  }

  /// `sentence` says what was noticed.
  void begin(const Watchdog::Stall& stall, Place place, std::string sentence) {
    const std::lock_guard lock(mutex_);
    if (stalls_.size() == kMost) stalls_.pop_front();
    stalls_.push_back({++number_, stall, std::move(place), std::move(sentence)});
  }

  /// So long after the newest one nobody will say more of it.
  static constexpr int64_t kPatienceNs = 8'000'000'000;
  void wait_no_longer(int64_t now_ns) {
    const std::lock_guard lock(mutex_);
    if (stalls_.empty() || now_ns - stalls_.back().times.noticed_ns < kPatienceNs) return;
    if (!std::exchange(stalls_.back().is_given_up, true)) publish_(json());
  }

  /// Steps go on.
  void end(int64_t now_ns) {
    const std::lock_guard lock(mutex_);
    if (!stalls_.empty()) stalls_.back().ended_ns = now_ns;
    publish_(json());
  }

  /// The number and the sentence of the newest one; nothing where there is none.
  std::optional<std::pair<uint64_t, std::string>> newest() const {
    const std::lock_guard lock(mutex_);
    if (stalls_.empty()) return std::nullopt;
    return std::pair{stalls_.back().number, stalls_.back().sentence};
  }

  /// It is none: the program has moved.
  void withdraw(uint64_t number) {
    const std::lock_guard lock(mutex_);
    if (std::erase_if(stalls_, [&](const Stall& stall) { return stall.number == number; }) == 0)
      return;
    is_withdrawn_ = true;
    publish_(json());
  }
  /// Whether the newest one was withdrawn since this was last asked.
  bool was_withdrawn() {
    const std::lock_guard lock(mutex_);
    return std::exchange(is_withdrawn_, false);
  }

  /// What Python knows of a stall: a JSON object. False where that stall is not there any more.
  bool answer(uint64_t number, std::string object) {
    return change(number, [&](Stall& stall) { stall.answer = std::move(object); });
  }
  /// The threads' stacks as CPython prints them, in ASCII.
  bool add_traceback(uint64_t number, std::string text) {
    return change(number, [&](Stall& stall) { stall.traceback = std::move(text); });
  }

  /// True for the first one who asks: it is said once.
  bool may_be_said(uint64_t number) {
    const std::lock_guard lock(mutex_);
    Stall* const stall = find(number);
    return stall != nullptr && !std::exchange(stall->was_said, true);
  }

 private:
  struct Stall {
    uint64_t number;
    Watchdog::Stall times;
    Place place;
    std::string sentence;
    std::optional<int64_t> ended_ns{};
    std::string answer{};
    std::string traceback{};
    bool was_said = false;
    bool is_given_up = false;

    bool is_known() const {
      return is_given_up || ended_ns || !answer.empty() || !traceback.empty();
    }
  };

  Stall* find(uint64_t number) {
    for (Stall& stall : stalls_)
      if (stall.number == number) return &stall;
    return nullptr;
  }

  template <typename Function>
  bool change(uint64_t number, Function function) {
    const std::lock_guard lock(mutex_);
    Stall* const stall = find(number);
    if (stall == nullptr) return false;
    function(*stall);
    publish_(json());
    return true;
  }

  std::string json() const {
    std::string out = "{\"stalls\":[";
    for (const Stall& stall : stalls_) {
      if (!stall.is_known()) continue;
      if (out.back() == '}') out += ',';
      out += "{\"since_ns\":" + std::to_string(stall.times.since_ns);
      out += ",\"noticed_ns\":" + std::to_string(stall.times.noticed_ns);
      out += ",\"limit_ns\":" + std::to_string(stall.times.limit_ns);
      out += ",\"ended_ns\":" + (stall.ended_ns ? std::to_string(*stall.ended_ns) : "null");
      out += ",\"step\":" + std::to_string(stall.place.step);
      out += ",\"paths\":[";
      for (const auto& [thread, path] : stall.place.paths) {
        if (out.back() == ']') out += ',';
        out += '[' + std::to_string(thread) + ',' + std::to_string(path) + ']';
      }
      out += "],\"answer\":" + (stall.answer.empty() ? "null" : stall.answer);
      out += ",\"traceback\":" + (stall.traceback.empty() ? "null" : quoted(stall.traceback));
      out += '}';
    }
    return out + "]}";
  }

  static std::string quoted(const std::string& ascii) {
    std::string out = "\"";
    for (const char c : ascii) {
      if (c == '"' || c == '\\') out += '\\';
      if (c == '\n') {
        out += "\\n";
      } else {
        out += c >= ' ' && c < 0x7F ? c : '?';
      }
    }
    return out + '"';
  }

  const std::function<void(std::string)> publish_;
  mutable std::mutex mutex_;
  std::deque<Stall> stalls_;
  bool is_withdrawn_ = false;
  uint64_t number_ = 0;  ///< of the newest one of the process
};

/// Has the watchdog look at each harvest, and notes what it has noticed.
class Stalls final : public Part {
 public:
  Stalls(const StepTracker& steps, const SpanRecord& spans, const CollectiveSeries& collectives,
         Documents& documents)
      : steps_(steps),
        spans_(spans),
        collectives_(collectives),
        log_([&](std::string json) { documents.set(BlockType::kStalls, std::move(json)); }) {}

  StallLog& log() { return log_; }

  void reset(const Session& session) override {
    log_.reset();
    watchdog_.reset(session.options.watchdog_ns);
    begun_ns_ = 0;
  }

  void drain(Harvest& harvest) override {
    // First: what is read before the recording ends by itself is the program's doing.
    const uint64_t step_changes = steps_.changes();
    RunState& state = harvest.state;
    state.active_ns = watchdog_.active_ns();
    if (harvest.final() || active_epoch.load() == 0) return;
    if (log_.was_withdrawn()) watchdog_.withdraw();
    const Watchdog::Change change =
        watchdog_.look(state.now_ns,
                       {changes(step_changes, state), collectives_.newest_ns(), cpu_ns(),
                        state.open_step.has_value()},
                       [&] {
                         const auto [count, usual_ns] = steps_.usual_ns();
                         return Watchdog::StepTimes{count, static_cast<int64_t>(usual_ns)};
                       });
    state.active_ns = watchdog_.active_ns();
    if (change == Watchdog::Change::kEnded) log_.end(state.now_ns);
    log_.wait_no_longer(state.now_ns);
    if (change != Watchdog::Change::kBegan) return;
    StallLog::Place place = place_of(state);
    std::string sentence = sentence_of(place);
    log_.begin(watchdog_.stall(), std::move(place), std::move(sentence));
    notify(Notice::kStall);
  }

 private:
  /// A sum of what only grows.
  uint64_t changes(uint64_t step_changes, const RunState& state) {
    for (const RunState::Open& frame : state.open) begun_ns_ = std::max(begun_ns_, frame.begin_ns);
    return step_changes + spans_.recorded() + static_cast<uint64_t>(begun_ns_) +
           observed_calls.load(std::memory_order_relaxed);
  }

  /// Who waits for a GPU spins.
  static uint64_t cpu_ns() {
    if (cuda::DeviceTiming::instance().attached()) return 0;
    return static_cast<uint64_t>(read_clock_ns(CLOCK_PROCESS_CPUTIME_ID));
  }

  StallLog::Place place_of(const RunState& state) const {
    StallLog::Place place{state.open_step ? steps_.index_of(state.open_step->serial) : -1, {}};
    for (const RunState::Open& frame : state.open) {
      // The frames of a thread come together, from the outermost in.
      if (!place.paths.empty() && place.paths.back().first == frame.thread) place.paths.pop_back();
      place.paths.emplace_back(frame.thread, frame.path);
    }
    if (!state.open_step) return place;
    // What its own thread does comes first.
    const auto its = std::find_if(place.paths.begin(), place.paths.end(), [&](const auto& open) {
      return open.first == state.open_step->thread;
    });
    if (its != place.paths.end()) std::iter_swap(place.paths.begin(), its);
    return place;
  }

  std::string sentence_of(const StallLog::Place& place) const {
    const auto text = [](int64_t ns) {
      if (ns >= 10'000'000'000) return std::to_string(ns / 1'000'000'000) + " s";
      if (ns >= 10'000'000) return std::to_string(ns / 1'000'000) + " ms";
      return std::to_string(ns / 1'000) + " us";
    };
    const Watchdog::Stall& stall = watchdog_.stall();
    std::string sentence = "nothing has happened for " + text(stall.noticed_ns - stall.since_ns);
    sentence += stall.usual_ns == 0
                    ? " (at the start, " + text(stall.limit_ns) + " are allowed): "
                    : " (steps usually take at most " + text(stall.usual_ns) + "): ";
    if (!place.paths.empty())
      sentence += "in " + spans_.path_text(place.paths.front().second) + ", ";
    if (place.step >= 0) return sentence + "step " + std::to_string(place.step);
    return sentence + (steps_.usual_ns().first == 0 ? "before the first step" : "between steps");
  }

  const StepTracker& steps_;
  const SpanRecord& spans_;
  const CollectiveSeries& collectives_;
  StallLog log_;
  Watchdog watchdog_;
  int64_t begun_ns_ = 0;  ///< when the newest phase that was seen to be open began
};

}  // namespace pig
