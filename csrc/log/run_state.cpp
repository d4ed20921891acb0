// SPDX-License-Identifier: Apache-2.0
#include "log/run_state.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <utility>

#include "hot/span.h"
#include "log/storage.h"

namespace pig {
namespace {

// Not printf: this is written at every tick.
template <typename Integer>
void print(std::string& out, Integer value) {
  char buffer[24];
  out.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
}

/// `"key":value,`; that of the last key is taken back by `end_object`.
template <typename Integer>
void print_integer(std::string& out, const char* key, Integer value) {
  out += '"';
  out += key;
  out += "\":";
  print(out, value);
  out += ',';
}

/// `[1,2]`, behind a comma if there was one before.
template <typename... Integers>
void print_list(std::string& out, bool& is_first, Integers... values) {
  out += std::exchange(is_first, false) ? "[" : ",[";
  ((print(out, values), out += ','), ...);
  out.back() = ']';
}

void end_object(std::string& out) {
  out.pop_back();
  out += "},";
}

/// The texts of errno have no character that JSON would have to escape, but for this to be true
/// everywhere:
std::string json_safe(std::string text) {
  for (char& c : text)
    if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20) c = ' ';
  return text;
}

/// Not printf: it writes the locale's decimal point.
std::string json_number(double value) {
  char buffer[32];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
}

}  // namespace

std::array<char, 20> now_text(int64_t now_ns) {
  std::array<char, 20> text;
  text.fill(' ');
  char digits[20];
  std::copy_backward(digits, std::to_chars(digits, digits + sizeof digits, now_ns).ptr, text.end());
  return text;
}

std::string to_json(const RunState& state, const DropCounters& drops, const BlockLog& log) {
  std::string json(kStateBegin);
  json.reserve(1024);
  const auto now = now_text(state.now_ns);
  json.append(now.data(), now.size());
  json += ',';
  json += state.final ? "\"final\":true," : "\"final\":false,";
  json += "\"anchor\":{";
  print_integer(json, "run_ns", state.anchor.run_ns);
  print_integer(json, "monotonic_ns", state.anchor.monotonic_ns);
  print_integer(json, "monotonic_raw_ns", state.anchor.monotonic_raw_ns);
  print_integer(json, "realtime_ns", state.anchor.realtime_ns);
  end_object(json);
  print_integer(json, "spans", log.items(BlockType::kSpans));
  print_integer(json, "steps", log.items(BlockType::kSteps));
  print_integer(json, "device_times", log.items(BlockType::kDeviceTimes));
  print_integer(json, "step_drops", log.items(BlockType::kDroppedSteps));
  print_integer(json, "metrics", log.items(BlockType::kMetrics));
  print_integer(json, "collectives", log.items(BlockType::kCollectives));
  print_integer(json, "phases_recorded", state.phases_recorded);
  print_integer(json, "harvester_cpu_ns", state.harvester_cpu_ns);
  json += "\"dropped\":{";
  const BlockLog::Dropped& dropped = state.losses.dropped;
  for (size_t i = 0; i < kDropNames.size(); ++i) {
    const auto cause = static_cast<Drop>(i);
    uint64_t count = drops.get(cause);
    if (cause == Drop::kSpanHistory) count += dropped[index_of(BlockType::kSpans)];
    if (cause == Drop::kStepHistory) count += dropped[index_of(BlockType::kSteps)];
    if (cause == Drop::kDeviceHistory) count += dropped[index_of(BlockType::kDeviceTimes)];
    if (cause == Drop::kDiskError) count += state.losses.disk_error_spans;
    print_integer(json, kDropNames[i], count);
  }
  end_object(json);
  json += "\"open_step\":";
  if (const auto& step = state.open_step) {
    const bool known = step->items != 0 && std::isfinite(step->samples);
    json += '{';
    print_integer(json, "serial", step->serial);
    print_integer(json, "thread", step->thread);
    print_integer(json, "begin_ns", step->begin_ns);
    json += "\"samples\":" + (known ? json_number(step->samples) : "null") + ',';
    print_integer(json, "items", step->items);
    end_object(json);
  } else {
    json += "null,";
  }
  json += "\"open\":[";
  bool is_first = true;
  for (const RunState::Open& frame : state.open)
    print_list(json, is_first, frame.thread, frame.path, frame.begin_ns,
               frame.step == kNoStep ? int64_t{-1} : int64_t{frame.step}, frame.depth);
  json += "],\"device\":";
  if (state.device) {
    json += '{';
    print_integer(json, "every", state.device->every);
    print_integer(json, "records", state.device->records);
    print_integer(json, "record_ns", state.device->record_ns);
    json += "\"pending\":[";
    is_first = true;
    for (const auto& [path, count] : state.device->pending) print_list(json, is_first, path, count);
    json += "]},";
  } else {
    json += "null,";
  }
  json += "\"error\":";
  if (state.losses.error != 0) {
    json += '"' + json_safe(storage_error_text(state.losses.error)) + '"';
  } else {
    json += "null";
  }
  return json + '}';
}

}  // namespace pig
