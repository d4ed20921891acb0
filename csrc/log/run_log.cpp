// SPDX-License-Identifier: Apache-2.0
#include "log/run_log.h"

#include <utility>

#include "hot/phase_table.h"

namespace pig {
namespace {

constexpr uint32_t kNoName = 0xFFFFFFFFu;
/// Of a path's name the upper two bits are its kind.
constexpr uint32_t kKindShift = 30;

/// Appends one item of several parts.
template <typename... Parts>
void append_item(BlockLog& log, BlockType type, const Parts&... parts) {
  std::vector<uint8_t> item;
  (put(item, parts), ...);
  log.append(type, item);
}

}  // namespace

RunLog::RunLog(std::unique_ptr<Storage> storage, uint64_t run_id, uint64_t history_spans,
               uint64_t max_bytes)
    : storage_(std::move(storage)), log_(*storage_, run_id, history_spans, max_bytes) {
  // When the disk is full, the file still says so, and whose it is.
  log_.reserve_document(BlockType::kEnvironment);
  log_.reserve_document(BlockType::kState);
  log_.reserve_document(BlockType::kTick, BlockLog::kJournalSlots);
}

uint32_t RunLog::name_of(uint32_t phase) {
  // Shared ids, the largest, come first: the table grows only as far as there are names.
  constexpr uint32_t kShared = PhaseTable::kSharedIds;
  const uint32_t at =
      phase < PhaseTable::kCapacity ? phase + kShared : phase - PhaseTable::kCapacity;
  if (at >= name_of_phase_.size()) name_of_phase_.resize(at + 1, kNoName);
  if (name_of_phase_[at] == kNoName) {
    append_item(log_, BlockType::kNames, PhaseTable::instance().name(phase));
    name_of_phase_[at] = names_++;
  }
  return name_of_phase_[at];
}

void RunLog::append_tables(const LogTables& added) {
  for (const PathTable::Path& path : added.paths) {
    const uint32_t name = name_of(path.phase);
    const auto kind = static_cast<uint32_t>(PhaseTable::instance().kind(path.phase));
    append_item(log_, BlockType::kPaths, path.parent, name | kind << kKindShift);
  }
  for (const ThreadInfo& thread : added.threads)
    append_item(log_, BlockType::kThreads, thread.native_id, thread.name);
  for (const std::string& name : added.metric_names)
    append_item(log_, BlockType::kMetricNames, name);
  for (const SyncSite& site : added.sync_sites)
    append_item(log_, BlockType::kSyncSites, site.line, site.kind, site.file, site.function);
  counts_.paths += added.paths.size();
  counts_.threads += added.threads.size();
  counts_.metric_names += added.metric_names.size();
  counts_.sync_sites += added.sync_sites.size();
}

void RunLog::add_tap(LogTap& tap, LogTables tables, const std::vector<uint32_t>& dropped_steps) {
  // Not further than this log got: what is newer is still to come.
  tables.paths.resize(counts_.paths);
  tables.threads.resize(counts_.threads);
  tables.metric_names.resize(counts_.metric_names);
  tables.sync_sites.clear();
  // A second log, of which nothing is kept but what it says to the tap.
  RunLog replay(std::make_unique<MemoryStorage>(), 0, 0, ~uint64_t{0});
  replay.log_.add_tap(&tap);
  replay.append_tables(tables);
  replay.append_dropped_steps(dropped_steps);
  log_.add_tap(&tap);
}

void RunLog::append_dropped_steps(const std::vector<uint32_t>& serials) {
  log_.append(BlockType::kDroppedSteps, serials.data(), sizeof(uint32_t), serials.size());
}

void RunLog::write_sync_statistics(const std::vector<uint8_t>& document) {
  if (!document.empty()) log_.write_document(BlockType::kSyncStatistics, document);
}

void RunLog::write_tick(RunState state, const DropCounters& drops, const RunLog& file) {
  state.losses = file.losses();
  const std::string json = to_json(state, drops, log_);
  log_.write_tick({reinterpret_cast<const uint8_t*>(json.data()), json.size()});
  if (log_.error() != 0) write_state(std::move(state), drops, file);
}

bool RunLog::repeat_tick(int64_t now_ns) {
  const auto now = now_text(now_ns);
  return log_.repeat_tick(kStateBegin.size(),
                          {reinterpret_cast<const uint8_t*>(now.data()), now.size()});
}

void RunLog::write_state(RunState state, const DropCounters& drops, const RunLog& file) {
  state.losses = file.losses();
  write_json(BlockType::kState, to_json(state, drops, log_));
}

void RunLog::write_json(BlockType type, const std::string& json) {
  log_.write_document(type, {reinterpret_cast<const uint8_t*>(json.data()), json.size()});
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
