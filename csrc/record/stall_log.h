// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "record/watchdog.h"

namespace pig {

/// The newest stalls of one recording, as the STALLS document has them (docs/run-file.md). Any
/// thread; never waits for long.
class StallLog {
 public:
  static constexpr size_t kMost = 8;

  struct Place {
    int64_t step;                                      ///< its index; -1: none is open
    std::vector<std::pair<uint32_t, uint32_t>> paths;  ///< by thread its innermost open one
  };

  /// `publish` gets the document at each change, the changes of all threads in their order.
  explicit StallLog(std::function<void(std::string)> publish) : publish_(std::move(publish)) {}

  void reset() {
    const std::lock_guard lock(mutex_);
    stalls_.clear();
  }

  /// `sentence` says what was noticed.
  void begin(const Watchdog::Stall& stall, Place place, std::string sentence) {
    const std::lock_guard lock(mutex_);
    if (stalls_.size() == kMost) stalls_.pop_front();
    stalls_.push_back({++number_, stall, std::move(place), std::move(sentence), {}, {}, {}, false});
    publish_(json());
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
    std::optional<int64_t> ended_ns;
    std::string answer;
    std::string traceback;
    bool was_said;
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
      if (&stall != &stalls_.front()) out += ',';
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
  uint64_t number_ = 0;  ///< of the newest one of the process
};

}  // namespace pig
