// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/drops.h"
#include "hot/path_table.h"
#include "log/block_log.h"
#include "log/items.h"
#include "log/run_state.h"
#include "log/storage.h"

namespace pig {

/// What items of the log refer to by number, from some number of each on.
struct LogTables {
  std::vector<PathTable::Path> paths;
  std::vector<ThreadInfo> threads;
  std::vector<std::string> metric_names;
  std::vector<SyncSite> sync_sites;
};

/// One run's records in their encoding, in the order in which readers need them: a name before its
/// path, a path and a thread before its spans.
class RunLog {
 public:
  RunLog(std::unique_ptr<Storage> storage, uint64_t run_id, uint64_t history_spans,
         uint64_t max_bytes);

  /// How much of each table is in the log.
  struct Counts {
    size_t paths = 0;
    size_t threads = 0;
    size_t metric_names = 0;
    size_t sync_sites = 0;
  };
  const Counts& counts() const { return counts_; }

  /// Appends what is new since `counts`; paths with their names.
  void append_tables(const LogTables& added);
  /// Gives `tap` the tables as they stand in the log, and from then on all that is written; not the
  /// sites of waits, which no reader of a tap wants. `tables` and `dropped_steps` are all so far;
  /// the last of these may come again.
  void add_tap(LogTap& tap, LogTables tables, const std::vector<uint32_t>& dropped_steps);
  void remove_tap(LogTap& tap) { log_.remove_tap(&tap); }

  template <typename Item>
  void append(const std::vector<Item>& items) {
    log_.append(Item::kBlock, items.data(), sizeof(Item), items.size());
  }
  void append_spans(const std::vector<SpanItem>& spans) {
    spans_appended_ += spans.size();
    append(spans);
  }
  void append_dropped_steps(const std::vector<uint32_t>& serials);

  void write_json(BlockType type, const std::string& json);
  /// Writes what was appended, and the state with the losses of `file`, which is this log or the
  /// one that it stands in for.
  void write_tick(RunState state, const DropCounters& drops, const RunLog& file);
  /// Writes the last tick again, with another `now_ns`. False where there is more to write.
  bool repeat_tick(int64_t now_ns);
  /// The state alone, where it stands when no journal is needed any more.
  void write_state(RunState state, const DropCounters& drops, const RunLog& file);
  /// Makes the journal shorter; now and then, before a tick.
  void settle_slow() { log_.settle_slow(); }
  /// At the end: readers need no journal any more.
  void settle() { log_.settle(); }
  /// Whether anything was appended since the last tick.
  bool has_news() const { return log_.has_news(); }
  /// The harvest has written all that it has.
  void end_writes() { log_.end_writes(); }
  /// `rows` is the encoding of a StatisticsTable, `totals` that of the StepTotals.
  void write_statistics(const std::vector<uint8_t>& totals, const std::vector<uint8_t>& rows);
  /// `document` is the encoding of a SyncLog.
  void write_sync_statistics(const std::vector<uint8_t>& document);

  uint64_t spans() const { return log_.items(BlockType::kSpans); }
  /// Those of them that have left the history.
  uint64_t dropped_spans() const { return log_.dropped()[index_of(BlockType::kSpans)]; }
  uint64_t syncs() const { return log_.items(BlockType::kSyncs); }
  int error() const { return log_.error(); }
  /// Nothing more is appended, as after an error of the storage.
  void end_history(int error) { log_.end_history(error); }
  Storage& storage() { return *storage_; }

 private:
  /// The name's number in this run. Appends it when it is new.
  uint32_t name_of(uint32_t phase);
  RunState::Losses losses() const {
    return {spans_appended_ - spans(), log_.dropped(), log_.error()};
  }

  std::unique_ptr<Storage> storage_;
  BlockLog log_;
  std::vector<uint32_t> name_of_phase_;  ///< by the phase's id
  uint32_t names_ = 0;
  Counts counts_;
  uint64_t spans_appended_ = 0;  ///< those included that an error keeps out
};

}  // namespace pig
