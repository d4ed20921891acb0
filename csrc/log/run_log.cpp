// SPDX-License-Identifier: Apache-2.0
#include "log/run_log.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>
#include <string_view>
#include <type_traits>

#include "hot/phase_table.h"
#include "hot/span.h"

namespace pig {
namespace {

constexpr uint32_t kNoName = 0xFFFFFFFFu;
/// Of a path's name the upper two bits are its kind.
constexpr uint32_t kKindShift = 30;

std::span<const uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

/// STATE begins with this and `now_ns`, which is as wide as any time: where nothing else is new, it
/// is all that has to be replaced.
constexpr std::string_view kStateBegin = "{\"now_ns\":";
std::array<char, 20> now_text(int64_t now_ns) {
  std::array<char, 20> text;
  text.fill(' ');
  char digits[20];
  std::copy_backward(digits, std::to_chars(digits, digits + sizeof digits, now_ns).ptr, text.end());
  return text;
}

/// Appends texts and numbers. Not printf: this is done at every tick, and printf writes the
/// locale's decimal point.
template <typename... Parts>
void print(std::string& out, const Parts&... parts) {
  const auto print_one = [&out](const auto& part) {
    if constexpr (std::is_arithmetic_v<std::remove_reference_t<decltype(part)>>) {
      char buffer[32];
      out.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, part).ptr);
    } else {
      out += part;
    }
  };
  (print_one(parts), ...);
}

/// A comma, but before the first element of a list.
const char* separator(const std::string& out) { return out.back() == '[' ? "" : ","; }

/// The texts of errno have no character that JSON would have to escape, but for this to be true
/// everywhere:
std::string json_safe(std::string text) {
  for (char& c : text)
    if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20) c = ' ';
  return text;
}

/// With what the file could not keep.
void print_dropped(std::string& out, const DropCounters& drops, const RunLog& file) {
  print(out, ",\"dropped\":{");
  for (size_t i = 0; i < kDropNames.size(); ++i) {
    const auto cause = static_cast<Drop>(i);
    uint64_t count = drops.get(cause);
    if (cause == Drop::kSpanHistory) count += file.dropped(BlockType::kSpans);
    if (cause == Drop::kStepHistory) count += file.dropped(BlockType::kSteps);
    if (cause == Drop::kDeviceHistory) count += file.dropped(BlockType::kDeviceTimes);
    if (cause == Drop::kDiskError)
      count += file.entries(BlockType::kSpans) - file.items(BlockType::kSpans);
    print(out, i == 0 ? "\"" : ",\"", kDropNames[i], "\":", count);
  }
  out += '}';
}

void print_open(std::string& out, const RunState& state) {
  print(out, ",\"open_step\":");
  if (const auto& step = state.open_step) {
    print(out, "{\"serial\":", step->serial, ",\"thread\":", step->thread,
          ",\"begin_ns\":", step->begin_ns, ",\"samples\":");
    if (step->items != 0 && std::isfinite(step->samples)) {
      print(out, step->samples);
    } else {
      out += "null";
    }
    print(out, ",\"items\":", step->items, "}");
  } else {
    out += "null";
  }
  out += ",\"open\":[";
  for (const RunState::Open& frame : state.open)
    print(out, separator(out), "[", frame.thread, ",", frame.path, ",", frame.begin_ns, ",",
          frame.step == kNoStep ? int64_t{-1} : int64_t{frame.step}, ",", frame.depth, "]");
  out += ']';
}

void print_device(std::string& out, const std::optional<RunState::Device>& device) {
  out += ",\"device\":";
  if (!device) {
    out += "null";
    return;
  }
  print(out, "{\"every\":", device->every, ",\"records\":", device->records,
        ",\"record_ns\":", device->record_ns, ",\"pending\":[");
  for (const auto& [path, count] : device->pending)
    print(out, separator(out), "[", path, ",", count, "]");
  out += "]}";
}

}  // namespace

RunLog::RunLog(Storage& storage, uint64_t run_id, uint64_t history_spans, uint64_t max_bytes)
    : BlockLog(storage, run_id, history_spans, max_bytes) {
  most_entries_.fill(~uint64_t{0});
  // When the disk is full, the file still says so, and whose it is.
  reserve_document(BlockType::kEnvironment);
  reserve_document(BlockType::kState);
  reserve_document(BlockType::kTick, kJournalSlots);
}

/// The name's number in this run. Appends it when it is new.
uint32_t RunLog::name_of(uint32_t phase) {
  // Shared ids, the largest, come first: the table grows only as far as there are names.
  constexpr uint32_t kShared = PhaseTable::kSharedIds;
  const uint32_t at =
      phase < PhaseTable::kCapacity ? phase + kShared : phase - PhaseTable::kCapacity;
  if (at >= name_of_phase_.size()) name_of_phase_.resize(at + 1, kNoName);
  if (name_of_phase_[at] == kNoName) {
    name_of_phase_[at] = static_cast<uint32_t>(entries(BlockType::kNames));
    append_entry(BlockType::kNames, PhaseTable::instance().name(phase));
  }
  return name_of_phase_[at];
}

void RunLog::append_path(const PathTable::Path& path) {
  if (entries(BlockType::kPaths) == most_entries_[index_of(BlockType::kPaths)]) return;
  const auto kind = static_cast<uint32_t>(PhaseTable::instance().kind(path.phase));
  append_entry(BlockType::kPaths, path.parent, name_of(path.phase) | kind << kKindShift);
}

void RunLog::open_subscription(LogSubscription& subscription,
                               const std::function<void(RunLog&)>& write_copy) {
  // A second log, of which nothing is kept but what it says to the subscription.
  MemoryStorage nowhere;
  RunLog replay(nowhere, 0, 0, ~uint64_t{0});
  // Not further than this log got: what is newer is still to come.
  replay.most_entries_ = appended_;
  replay.add_subscription(&subscription);
  write_copy(replay);
  add_subscription(&subscription);
}

void RunLog::write_document(BlockType type, const std::string& json) {
  write_document(type, bytes_of(json));
}

/// The STATE document: the state, what was lost and dropped, and how many items this log has.
std::string RunLog::state_json(const RunState& state, const DropCounters& drops,
                               const RunLog& file) const {
  std::string json(kStateBegin);
  json.reserve(1024);
  const auto now = now_text(state.now_ns);
  json.append(now.data(), now.size());
  const ClockAnchor& anchor = state.anchor;
  print(json, ",\"final\":", state.final ? "true" : "false", ",\"active_ns\":", state.active_ns,
        ",\"anchor\":{\"run_ns\":", anchor.run_ns, ",\"monotonic_ns\":", anchor.monotonic_ns,
        ",\"monotonic_raw_ns\":", anchor.monotonic_raw_ns, ",\"realtime_ns\":", anchor.realtime_ns,
        "},\"spans\":", items(BlockType::kSpans), ",\"steps\":", items(BlockType::kSteps),
        ",\"device_times\":", items(BlockType::kDeviceTimes),
        ",\"step_drops\":", items(BlockType::kDroppedSteps),
        ",\"metrics\":", items(BlockType::kMetrics),
        ",\"collectives\":", items(BlockType::kCollectives),
        ",\"phases_recorded\":", state.phases_recorded,
        ",\"harvester_cpu_ns\":", state.harvester_cpu_ns);
  print_dropped(json, drops, file);
  print_open(json, state);
  print_device(json, state.device);
  const bool is_whole = file.error() == 0;
  print(json,
        ",\"error\":", is_whole ? "null" : '"' + json_safe(storage_error_text(file.error())) + '"',
        "}");
  return json;
}

void RunLog::write_tick(const RunState& state, const DropCounters& drops) {
  BlockLog::write_tick(bytes_of(state_json(state, drops, *this)));
  if (error() != 0) write_state(state, drops, *this);
}

bool RunLog::repeat_tick(int64_t now_ns) {
  const auto now = now_text(now_ns);
  return BlockLog::repeat_tick(kStateBegin.size(), bytes_of({now.data(), now.size()}));
}

void RunLog::write_state(const RunState& state, const DropCounters& drops, const RunLog& file) {
  write_document(BlockType::kState, state_json(state, drops, file));
}

}  // namespace pig
