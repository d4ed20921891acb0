// SPDX-License-Identifier: Apache-2.0
#include "log/run_log.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "hot/phase_table.h"
#include "hot/span.h"

namespace pig {
namespace {

constexpr uint32_t kNoName = 0xFFFFFFFFu;

template <typename T>
void put(std::vector<uint8_t>& out, const T& value) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof value);
}

void put_text(std::vector<uint8_t>& out, const std::string& text) {
  put(out, static_cast<uint16_t>(text.size()));
  out.insert(out.end(), text.begin(), text.end());
}

template <typename... Arguments>
void print(std::string& out, const char* format, Arguments... arguments) {
  char buffer[256];
  const int length = std::snprintf(buffer, sizeof buffer, format, arguments...);
  out.append(buffer, static_cast<size_t>(length));
}

void print_integer(std::string& out, const char* key, int64_t value) {
  print(out, "\"%s\":%lld", key, static_cast<long long>(value));
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

RunLog::RunLog(std::unique_ptr<Storage> storage, uint64_t run_id, uint64_t history_spans,
               uint64_t max_bytes)
    : storage_(std::move(storage)), log_(*storage_, run_id, history_spans, max_bytes) {
  // When the disk is full, the file still says so, and whose it is.
  log_.reserve_document(BlockType::kEnvironment);
  log_.reserve_document(BlockType::kState);
}

void RunLog::append_name(uint32_t phase) {
  if (phase >= name_of_phase_.size()) name_of_phase_.resize(phase + 1, kNoName);
  if (name_of_phase_[phase] != kNoName) return;
  name_of_phase_[phase] = names_++;
  std::vector<uint8_t> item;
  put_text(item, PhaseTable::instance().name(phase));
  log_.append(BlockType::kNames, item);
}

void RunLog::append_tables(const LogTables& added) {
  for (const PathTable::Path& path : added.paths) {
    append_name(path.phase);
    const uint32_t item[2] = {path.parent, name_of_phase_[path.phase]};
    log_.append(BlockType::kPaths, item, sizeof item, 1);
  }
  for (const ThreadInfo& thread : added.threads) {
    std::vector<uint8_t> item;
    put(item, thread.native_id);
    put_text(item, thread.name);
    log_.append(BlockType::kThreads, item);
  }
  for (const std::string& name : added.metric_names) {
    std::vector<uint8_t> item;
    put_text(item, name);
    log_.append(BlockType::kMetricNames, item);
  }
  for (const SyncSite& site : added.sync_sites) {
    std::vector<uint8_t> item;
    put(item, site.line);
    put(item, site.kind);
    put_text(item, site.file);
    put_text(item, site.function);
    log_.append(BlockType::kSyncSites, item);
  }
  counts_.paths += added.paths.size();
  counts_.threads += added.threads.size();
  counts_.metric_names += added.metric_names.size();
  counts_.sync_sites += added.sync_sites.size();
}

void RunLog::set_tap(LogTap& tap, LogTables tables, const std::vector<uint32_t>& dropped_steps) {
  // Not further than this log got: what is newer is still to come.
  tables.paths.resize(counts_.paths);
  tables.threads.resize(counts_.threads);
  tables.metric_names.resize(counts_.metric_names);
  tables.sync_sites.clear();
  // A second log, of which nothing is kept but what it says to the tap.
  RunLog replay(std::make_unique<MemoryStorage>(), 0, 0, ~uint64_t{0});
  replay.log_.set_tap(&tap);
  replay.append_tables(tables);
  replay.append_dropped_steps(dropped_steps);
  log_.set_tap(&tap);
}

void RunLog::append_spans(const std::vector<SpanItem>& spans) {
  const uint64_t before = log_.items(BlockType::kSpans);
  log_.append(BlockType::kSpans, spans.data(), sizeof(SpanItem), spans.size());
  lost_spans_ += spans.size() - (log_.items(BlockType::kSpans) - before);
}

void RunLog::append_steps(const std::vector<StepItem>& steps) {
  log_.append(BlockType::kSteps, steps.data(), sizeof(StepItem), steps.size());
}

void RunLog::append_streams(const std::vector<StreamItem>& streams) {
  log_.append(BlockType::kStreams, streams.data(), sizeof(StreamItem), streams.size());
}

void RunLog::append_device_clocks(const std::vector<DeviceClockItem>& points) {
  log_.append(BlockType::kDeviceClocks, points.data(), sizeof(DeviceClockItem), points.size());
}

void RunLog::append_device_times(const std::vector<DeviceTimeItem>& times) {
  log_.append(BlockType::kDeviceTimes, times.data(), sizeof(DeviceTimeItem), times.size());
}

void RunLog::append_dropped_steps(const std::vector<uint32_t>& serials) {
  log_.append(BlockType::kDroppedSteps, serials.data(), sizeof(uint32_t), serials.size());
}

void RunLog::append_metrics(const std::vector<MetricItem>& values) {
  log_.append(BlockType::kMetrics, values.data(), sizeof(MetricItem), values.size());
}

void RunLog::append_syncs(const std::vector<SyncItem>& syncs) {
  log_.append(BlockType::kSyncs, syncs.data(), sizeof(SyncItem), syncs.size());
}

void RunLog::write_sync_statistics(const std::vector<uint8_t>& document) {
  if (!document.empty()) log_.write_document(BlockType::kSyncStatistics, document);
}

void RunLog::write_environment(const std::string& json) {
  log_.write_document(BlockType::kEnvironment,
                      {reinterpret_cast<const uint8_t*>(json.data()), json.size()});
}

void RunLog::write_state(const RunState& state, const DropCounters& drops) {
  std::string json = "{";
  print_integer(json, "now_ns", state.anchor.run_ns);
  json += state.final ? ",\"final\":true,\"anchor\":{" : ",\"final\":false,\"anchor\":{";
  print_integer(json, "run_ns", state.anchor.run_ns);
  json += ',';
  print_integer(json, "monotonic_ns", state.anchor.monotonic_ns);
  json += ',';
  print_integer(json, "monotonic_raw_ns", state.anchor.monotonic_raw_ns);
  json += ',';
  print_integer(json, "realtime_ns", state.anchor.realtime_ns);
  json += "},";
  print_integer(json, "spans", static_cast<int64_t>(log_.items(BlockType::kSpans)));
  json += ',';
  print_integer(json, "steps", static_cast<int64_t>(log_.items(BlockType::kSteps)));
  json += ',';
  print_integer(json, "device_times", static_cast<int64_t>(log_.items(BlockType::kDeviceTimes)));
  json += ',';
  print_integer(json, "step_drops", static_cast<int64_t>(log_.items(BlockType::kDroppedSteps)));
  json += ',';
  print_integer(json, "metrics", static_cast<int64_t>(log_.items(BlockType::kMetrics)));
  json += ',';
  print_integer(json, "phases_recorded", static_cast<int64_t>(state.phases_recorded));
  json += ',';
  print_integer(json, "harvester_cpu_ns", static_cast<int64_t>(state.harvester_cpu_ns));
  json += ",\"dropped\":{";
  for (size_t i = 0; i < kDropNames.size(); ++i) {
    const auto cause = static_cast<Drop>(i);
    uint64_t count = drops.get(cause);
    if (cause == Drop::kSpanHistory) count += state.losses.dropped.spans;
    if (cause == Drop::kStepHistory) count += state.losses.dropped.steps;
    if (cause == Drop::kDeviceHistory) count += state.losses.dropped.device_times;
    if (cause == Drop::kDiskError) count += state.losses.disk_error_spans;
    if (i != 0) json += ',';
    print_integer(json, kDropNames[i], static_cast<int64_t>(count));
  }
  json += "},\"open_step\":";
  if (state.open_step) {
    print(json, "{\"serial\":%u,\"thread\":%u,", state.open_step->serial, state.open_step->thread);
    print_integer(json, "begin_ns", state.open_step->begin_ns);
    if (state.open_step->items == 0 || !std::isfinite(state.open_step->samples)) {
      json += ",\"samples\":null";
    } else {
      json += ",\"samples\":" + json_number(state.open_step->samples);
    }
    print(json, ",\"items\":%u}", state.open_step->items);
  } else {
    json += "null";
  }
  json += ",\"open\":[";
  for (size_t i = 0; i < state.open.size(); ++i) {
    const RunState::Open& frame = state.open[i];
    print(json, "%s[%u,%u,%lld,%lld,%u]", i != 0 ? "," : "", frame.thread, frame.path,
          static_cast<long long>(frame.begin_ns),
          frame.step == kNoStep ? -1LL : static_cast<long long>(frame.step), frame.depth);
  }
  json += "],\"device\":";
  if (state.device) {
    print(json, "{\"every\":%u,", state.device->every);
    print_integer(json, "records", static_cast<int64_t>(state.device->records));
    json += ',';
    print_integer(json, "record_ns", static_cast<int64_t>(state.device->record_ns));
    json += ",\"pending\":[";
    const char* separator = "";
    for (const auto& [path, count] : state.device->pending) {
      print(json, "%s[%u,%llu]", separator, path, static_cast<unsigned long long>(count));
      separator = ",";
    }
    json += "]}";
  } else {
    json += "null";
  }
  json += ",\"error\":";
  if (state.losses.error != 0) {
    json += '"' + json_safe(std::generic_category().message(state.losses.error)) + '"';
  } else {
    json += "null";
  }
  json += '}';
  log_.write_document(BlockType::kState,
                      {reinterpret_cast<const uint8_t*>(json.data()), json.size()});
}

void RunLog::write_statistics(const std::vector<uint8_t>& totals,
                              const std::vector<uint8_t>& rows) {
  std::vector<uint8_t> document;
  put(document, log_.items(BlockType::kSpans));
  put(document, log_.items(BlockType::kSteps));
  put(document, log_.items(BlockType::kDeviceTimes));
  document.insert(document.end(), totals.begin(), totals.end());
  document.insert(document.end(), rows.begin(), rows.end());
  log_.write_document(BlockType::kStatistics, document);
}

}  // namespace pig
