// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "check.h"
#include "log/block_log.h"
#include "log/storage.h"
#include "log_reader.h"

namespace {

using pig::BlockLog;
using pig::BlockType;
using Bytes = LogReader::Bytes;

constexpr uint64_t kRunId = 0x1122334455667788;
constexpr uint64_t kUnbounded = uint64_t{1} << 40;
constexpr size_t kSpanBytes = 40;
constexpr size_t kSpansPerBlock = (16384 - 48) / kSpanBytes;

uint16_t number(BlockType type) { return static_cast<uint16_t>(type); }

constexpr uint64_t bytes_of_slots(uint64_t slots) { return 4096 + slots * 16384; }

Bytes contents(const pig::MemoryStorage& storage) {
  Bytes bytes(storage.size());
  storage.read(bytes.data());
  return bytes;
}

constexpr size_t kNever = ~size_t{0};

/// The process is killed. Nothing of the program runs after it but what a test does.
struct Killed {};

/// Memory in which the write with a given number, counted from 0, goes wrong.
class FaultyStorage : public pig::Storage {
 public:
  enum class Fault {
    kKill,         ///< the process dies instead of it
    kFailOnce,     ///< it fails; later ones would not
    kFailForGood,  ///< it fails, as do all later ones
  };

  FaultyStorage(Fault fault, size_t at) : fault_(fault), at_(at) {}

  int write(uint64_t offset, const void* data, size_t bytes) override {
    const size_t number = writes_++;
    if (number != at_ && !(fault_ == Fault::kFailForGood && number > at_))
      return memory_.write(offset, data, bytes);
    // As the kernel does it: whole pages, and headers lie in one.
    constexpr uint64_t kPage = 4096;
    const uint64_t cut = (offset + bytes / 2) / kPage * kPage;
    if (cut > offset) CHECK_EQ(memory_.write(offset, data, cut - offset), 0);
    if (fault_ == Fault::kKill) throw Killed();
    return EIO;
  }

  void fail_next() { at_ = writes_; }
  int check() override {
    ++checks_;
    return 0;
  }
  size_t writes() const { return writes_; }
  size_t checks() const { return checks_; }
  Bytes contents() const { return ::contents(memory_); }

 private:
  Fault fault_;
  size_t at_;
  size_t writes_ = 0;
  size_t checks_ = 0;
  pig::MemoryStorage memory_;
};

/// Item `index` of a log: its bytes depend on the index and the type alone.
Bytes item(BlockType type, uint64_t index, size_t bytes) {
  Bytes item(bytes);
  for (size_t i = 0; i < bytes; ++i)
    item[i] =
        static_cast<uint8_t>(index >> (i % 8 * 8)) ^ static_cast<uint8_t>(31 * i + number(type));
  return item;
}

Bytes items(BlockType type, uint64_t first, size_t count, size_t item_bytes) {
  Bytes all;
  for (uint64_t i = first; i < first + count; ++i) {
    const Bytes one = item(type, i, item_bytes);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

/// A log together with what was asked of it.
class Writer {
 public:
  Writer(pig::Storage& storage, uint64_t history_spans, uint64_t max_bytes)
      : log(storage, kRunId, history_spans, max_bytes) {}

  /// Appends `count` items of a log in which all are of one size.
  void append(BlockType type, size_t item_bytes, size_t count) {
    Asked& asked = asked_[type];
    asked.item_bytes = item_bytes;
    const Bytes bytes = items(type, asked.count, count, item_bytes);
    asked.count += count;
    log.append(type, bytes.data(), item_bytes, count);
    note_written(log.error() != 0);
  }

  /// STATE of a length, and all that was appended.
  void tick(size_t state_bytes) {
    std::vector<Bytes>& versions = documents_[BlockType::kState];
    versions.push_back(item(BlockType::kState, versions.size() + 1, state_bytes));
    log.write_tick(versions.back());
    log.end_writes();
    note_written(true);
    if (log.error() == 0) {
      whole_[BlockType::kState] = versions.size();
      return;
    }
    log.write_document(BlockType::kState, versions.back());
  }

  /// The last tick again, with other bytes in STATE. Returns whether that was possible.
  bool repeat() {
    constexpr size_t kAt = 10, kBytes = 20;
    std::vector<Bytes>& versions = documents_[BlockType::kState];
    Bytes state = versions.back();
    if (state.size() < kAt + kBytes) return false;
    const Bytes other = item(BlockType::kState, versions.size() + 1, kBytes);
    std::copy(other.begin(), other.end(), state.begin() + kAt);
    versions.push_back(state);
    const bool was_repeated = log.repeat_tick(kAt, other);
    log.end_writes();
    if (was_repeated) {
      whole_[BlockType::kState] = versions.size();
    } else if (log.error() == 0) {
      versions.pop_back();
    }
    return was_repeated;
  }

  void flush() {
    log.flush();
    note_written(true);
  }

  void write_document(BlockType type, size_t bytes) {
    std::vector<Bytes>& versions = documents_[type];
    versions.push_back(item(type, versions.size() + 1, bytes));
    log.write_document(type, versions.back());
    if (log.error() == 0) whole_[type] = versions.size();
  }

  /// All that the log accepted is there, and nothing that it was not given.
  void check(const LogReader& reader) const {
    CHECK_EQ(reader.damaged(), 0u);
    for (const auto& [type, asked] : asked_) {
      const LogReader::Log found = reader.log(number(type));
      CHECK_EQ(found.items.size() % asked.item_bytes, 0u);
      const uint64_t count = found.items.size() / asked.item_bytes;
      CHECK(found.first <= dropped(type));
      CHECK(found.first + count >= asked.written);
      CHECK(found.first + count <= asked.count);
      CHECK(found.items == items(type, found.first, count, asked.item_bytes));
    }
    for (const auto& [type, versions] : documents_) {
      const auto whole = whole_.find(type);
      const std::optional<LogReader::Document> found = reader.document(number(type));
      if (whole != whole_.end()) CHECK(found && found->version >= whole->second);
      if (!found) continue;
      // After a failing tick STATE comes again, with a version of its own.
      CHECK(std::find(versions.begin(), versions.end(), found->content) != versions.end());
    }
  }

  /// What it says that it holds, or held: after a tick all that was appended.
  void note_written(bool whole) {
    for (auto& [type, asked] : asked_) {
      if (log.error() == 0) CHECK_EQ(log.items(type), asked.count);
      if (whole) asked.written = log.items(type);
    }
  }

  uint64_t dropped(BlockType type) const { return log.dropped()[pig::index_of(type)]; }

  BlockLog log;

 private:
  struct Asked {
    size_t item_bytes = 0;
    uint64_t count = 0;
    uint64_t written = 0;  ///< those for which the log took responsibility
  };
  std::map<BlockType, Asked> asked_;
  std::map<BlockType, std::vector<Bytes>> documents_;
  std::map<BlockType, uint64_t> whole_;  ///< the last version that was written without an error
};

/// A short run with all that can happen: blocks that grow and fill up, both bounds reached,
/// documents that get longer and shorter.
constexpr uint64_t kScenarioHistorySpans = 3 * kSpansPerBlock;
constexpr uint64_t kScenarioBytes = bytes_of_slots(18);

void run_scenario(Writer& writer) {
  writer.write_document(BlockType::kEnvironment, 500);
  for (size_t tick = 0; tick < 15; ++tick) {
    writer.append(BlockType::kNames, 300, 1 + tick % 3);
    writer.append(BlockType::kPaths, 8, tick % 5);
    writer.append(BlockType::kSpans, kSpanBytes, 150 * (tick % 4) + tick);
    writer.append(BlockType::kSteps, 40, 100);
    if (tick % 4 == 3) writer.log.flush_slow();
    writer.tick(tick % 7 * 6000);
    writer.repeat();
    if (tick % 4 == 3) writer.write_document(BlockType::kStatistics, 4000 * tick);
    writer.repeat();
  }
  writer.flush();
  writer.write_document(BlockType::kEnvironment, 20'000);
}

size_t writes_of_scenario() {
  FaultyStorage storage(FaultyStorage::Fault::kKill, kNever);
  Writer writer(storage, kScenarioHistorySpans, kScenarioBytes);
  run_scenario(writer);
  CHECK_EQ(writer.log.error(), 0);
  // The scenario is worth its name.
  CHECK(writer.dropped(BlockType::kSpans) > 0 && writer.dropped(BlockType::kSteps) > 0);
  writer.check(LogReader(storage.contents()));
  return storage.writes();
}

void test_bytes_of_a_small_log() {
  pig::MemoryStorage storage;
  BlockLog log(storage, kRunId, 100, kUnbounded);
  const Bytes name = {3, 0, 'a', 'b', 'c'};
  log.append(BlockType::kNames, name);
  log.append(BlockType::kNames, name);
  log.flush();
  const Bytes text = {'{', '}'};
  log.write_document(BlockType::kState, text);

  const Bytes bytes = contents(storage);
  CHECK_EQ(bytes.size(), 4096u + 16384 + 48 + 2);
  const auto zero = [](uint8_t byte) { return byte == 0; };
  CHECK(std::all_of(bytes.begin() + 32, bytes.begin() + 60, zero));
  CHECK(std::all_of(bytes.begin() + 64, bytes.begin() + 4096, zero));
  CHECK_EQ(LogReader::get<uint64_t>(bytes, 24), kRunId);

  const auto check_header = [&bytes](size_t at, uint16_t type, uint32_t slot, uint32_t length,
                                     uint64_t sequence, uint64_t first) {
    CHECK(std::memcmp(&bytes[at], "PGBK", 4) == 0);
    CHECK_EQ(LogReader::get<uint16_t>(bytes, at + 4), type);
    CHECK_EQ(LogReader::get<uint16_t>(bytes, at + 6), 0u);
    CHECK_EQ(LogReader::get<uint64_t>(bytes, at + 8), kRunId);
    CHECK_EQ(LogReader::get<uint32_t>(bytes, at + 16), slot);
    CHECK_EQ(LogReader::get<uint32_t>(bytes, at + 20), length);
    CHECK_EQ(LogReader::get<uint64_t>(bytes, at + 24), sequence);
    CHECK_EQ(LogReader::get<uint64_t>(bytes, at + 32), first);
  };
  check_header(4096, 16, 0, 10, 0, 0);
  CHECK(std::memcmp(&bytes[4096 + 48], "\3\0abc\3\0abc", 10) == 0);
  check_header(4096 + 16384, 2, 1, 2, 1, uint64_t{1} << 32);
  CHECK_EQ(LogReader(bytes).blocks(), 2u);
}

void test_items_do_not_straddle_blocks() {
  pig::MemoryStorage storage;
  Writer writer(storage, 100, kUnbounded);
  writer.append(BlockType::kThreads, 10'000, 3);
  writer.flush();
  const LogReader reader(contents(storage));
  writer.check(reader);
  CHECK_EQ(reader.log(number(BlockType::kThreads)).blocks, 3u);
}

void test_history_spans_bound_the_spans() {
  for (const uint64_t history_spans : {uint64_t{0}, uint64_t{1}, uint64_t{kSpansPerBlock - 1},
                                       uint64_t{kSpansPerBlock}, uint64_t{5000}}) {
    pig::MemoryStorage storage;
    Writer writer(storage, history_spans, kUnbounded);
    uint64_t appended = 0;
    for (size_t count = 1; appended < 20'000; count = count % 700 + 97) {
      writer.append(BlockType::kSpans, kSpanBytes, count);
      appended += count;
      writer.tick(100);
      const uint64_t dropped = writer.dropped(BlockType::kSpans);
      CHECK(appended - dropped >= std::min(history_spans, appended));
      CHECK(appended - dropped <= history_spans + 3 * kSpansPerBlock);
    }
    writer.flush();
    const LogReader reader(contents(storage));
    writer.check(reader);
    // Dropped means gone, and counted to the last one.
    CHECK_EQ(reader.log(number(BlockType::kSpans)).first, writer.dropped(BlockType::kSpans));
    CHECK(writer.dropped(BlockType::kSpans) > 0);
    CHECK_EQ(writer.dropped(BlockType::kSteps), 0u);
  }
}

/// Names, paths and documents are never dropped: with nothing else left the log grows.
void test_only_history_is_dropped() {
  pig::MemoryStorage storage;
  Writer writer(storage, kUnbounded, bytes_of_slots(2));
  writer.append(BlockType::kSpans, kSpanBytes, 10);
  writer.append(BlockType::kNames, 8000, 10);
  writer.write_document(BlockType::kState, 40'000);
  writer.write_document(BlockType::kState, 40'000);
  writer.append(BlockType::kSpans, kSpanBytes, 5 * kSpansPerBlock);
  writer.flush();
  writer.check(LogReader(contents(storage)));
  CHECK(writer.dropped(BlockType::kSpans) > 0);
}

void test_readable_after_every_write() {
  const size_t writes = writes_of_scenario();
  for (size_t at = 1; at < writes; ++at) {  // without the file header there is nothing to read
    FaultyStorage storage(FaultyStorage::Fault::kKill, at);
    Writer writer(storage, kScenarioHistorySpans, kScenarioBytes);
    bool killed = false;
    try {
      run_scenario(writer);
    } catch (const Killed&) {
      killed = true;
    }
    CHECK(killed);
    writer.check(LogReader(storage.contents()));
  }
}

void test_readable_after_failing_writes() {
  const size_t writes = writes_of_scenario();
  for (const auto fault : {FaultyStorage::Fault::kFailOnce, FaultyStorage::Fault::kFailForGood})
    for (size_t at = 1; at < writes; ++at) {
      FaultyStorage storage(fault, at);
      Writer writer(storage, kScenarioHistorySpans, kScenarioBytes);
      run_scenario(writer);
      CHECK_EQ(writer.log.error(), EIO);
      writer.check(LogReader(storage.contents()));
    }
}

/// The first failing write ends the logs; documents are still replaced in the room they have.
void test_after_an_error() {
  const size_t writes = writes_of_scenario();
  for (size_t at = 1; at < writes; ++at) {
    FaultyStorage storage(FaultyStorage::Fault::kFailOnce, at);
    Writer writer(storage, kScenarioHistorySpans, kScenarioBytes);
    run_scenario(writer);
    writer.flush();
    const size_t before = storage.writes();
    const uint64_t spans = writer.log.items(BlockType::kSpans);
    writer.append(BlockType::kSpans, kSpanBytes, 1000);
    writer.flush();
    CHECK_EQ(storage.writes(), before);
    CHECK_EQ(writer.log.items(BlockType::kSpans), spans);
  }

  FaultyStorage storage(FaultyStorage::Fault::kFailOnce, kNever);
  Writer writer(storage, kScenarioHistorySpans, kScenarioBytes);
  writer.write_document(BlockType::kState, 100);
  writer.write_document(BlockType::kState, 100);
  storage.fail_next();
  writer.append(BlockType::kSpans, kSpanBytes, 10);
  writer.flush();
  CHECK_EQ(writer.log.error(), EIO);
  writer.write_document(BlockType::kState, 120);
  const auto state = LogReader(storage.contents()).document(number(BlockType::kState));
  CHECK(state && state->content.size() == 120);
}

/// Memory that can't grow beyond a size, as a disk that is full.
class FullStorage : public pig::Storage {
 public:
  explicit FullStorage(uint64_t bytes) : bytes_(bytes) {}

  int write(uint64_t offset, const void* data, size_t bytes) override {
    return offset + bytes <= bytes_ ? memory_.write(offset, data, bytes) : ENOSPC;
  }

  Bytes contents() const { return ::contents(memory_); }

 private:
  uint64_t bytes_;
  pig::MemoryStorage memory_;
};

/// A document whose room was taken in time can be written wherever the disk gets full.
void test_reserved_document() {
  for (uint64_t slots = 2; slots < 12; ++slots) {
    FullStorage storage(bytes_of_slots(slots));
    Writer writer(storage, kUnbounded, kUnbounded);
    writer.log.reserve_document(BlockType::kState);
    CHECK_EQ(writer.log.error(), 0);
    writer.append(BlockType::kSpans, kSpanBytes, 12 * kSpansPerBlock);
    writer.flush();
    CHECK_EQ(writer.log.error(), ENOSPC);
    for (size_t version = 1; version <= 3; ++version) {
      writer.write_document(BlockType::kState, 100 * version);
      const auto state = LogReader(storage.contents()).document(number(BlockType::kState));
      CHECK(state && state->version == version && state->content.size() == 100 * version);
    }
    writer.check(LogReader(storage.contents()));
  }
}

/// A tick is one check and one write, and one more write when blocks are full.
void test_writes_of_a_tick() {
  FaultyStorage storage(FaultyStorage::Fault::kKill, kNever);
  Writer writer(storage, kUnbounded, kUnbounded);
  const auto writes_of = [&](auto work) {
    writer.log.end_writes();
    const size_t writes = storage.writes();
    const size_t checks = storage.checks();
    work();
    writer.tick(700);
    writer.check(LogReader(storage.contents()));
    CHECK_EQ(storage.checks() - checks, 1u);
    return storage.writes() - writes;
  };
  writer.log.reserve_document(BlockType::kTick, BlockLog::kJournalSlots);
  // Some of each type.
  const auto some = [&] {
    writer.append(BlockType::kNames, 20, 2);
    writer.append(BlockType::kPaths, 8, 2);
    writer.append(BlockType::kSpans, kSpanBytes, 30);
    writer.append(BlockType::kSteps, 40, 5);
  };
  for (size_t tick = 0; tick < 10; ++tick) CHECK_EQ(writes_of(some), 1u);
  CHECK_EQ(writes_of([] {}), 1u);
  CHECK_EQ(writes_of([&] { writer.append(BlockType::kSpans, kSpanBytes, 10 * kSpansPerBlock); }),
           2u);
  // More than one batch.
  CHECK_EQ(writes_of([&] { writer.append(BlockType::kSpans, kSpanBytes, 40 * kSpansPerBlock); }),
           4u);
  // Of a log that has not filled a block since the last time, the newest one goes to its slot; then
  // it need not again.
  writer.log.flush_slow();
  CHECK_EQ(writes_of([&] { writer.append(BlockType::kSpans, kSpanBytes, kSpansPerBlock); }), 2u);
  CHECK_EQ(writes_of([&] { writer.log.flush_slow(); }), 1u + 3);
  CHECK_EQ(writes_of([&] { writer.log.flush_slow(); }), 1u + 1);
  CHECK_EQ(writes_of([&] { writer.log.flush_slow(); }), 1u);
  // And is extended there, payload and header.
  CHECK_EQ(writes_of(some), 1u);
  writer.flush();
  CHECK_EQ(writes_of([] {}), 1u);
}

/// As long as nothing is new.
void test_a_tick_that_is_repeated() {
  FaultyStorage storage(FaultyStorage::Fault::kKill, kNever);
  Writer writer(storage, kUnbounded, kUnbounded);
  writer.log.reserve_document(BlockType::kTick, BlockLog::kJournalSlots);
  const auto repeats = [&] {
    const size_t writes = storage.writes();
    const bool was_repeated = writer.repeat();
    CHECK_EQ(storage.writes() - writes, was_repeated ? 1u : 0u);
    writer.check(LogReader(storage.contents()));
    return was_repeated;
  };
  writer.append(BlockType::kSpans, kSpanBytes, kSpansPerBlock);
  writer.append(BlockType::kSteps, 40, 5);
  writer.tick(700);  // a journal of two blocks
  CHECK(repeats());
  CHECK(repeats());
  writer.append(BlockType::kSteps, 40, 1);
  CHECK(!repeats());
  writer.tick(700);
  CHECK(repeats());
  writer.tick(30'000);  // STATE has slots of its own
  CHECK(!repeats());
}

/// The journal holds no more than its slots: what is too much for it is flushed.
void test_journal_is_bounded() {
  FaultyStorage storage(FaultyStorage::Fault::kKill, kNever);
  Writer writer(storage, kUnbounded, kUnbounded);
  writer.log.reserve_document(BlockType::kTick, BlockLog::kJournalSlots);
  constexpr BlockType kTypes[] = {BlockType::kNames,  BlockType::kPaths, BlockType::kThreads,
                                  BlockType::kSteps,  BlockType::kSpans, BlockType::kStreams,
                                  BlockType::kMetrics};
  for (size_t tick = 0; tick < 100; ++tick) {
    for (const BlockType type : kTypes) writer.append(type, 40, 10 + tick % 7);
    writer.tick(3000 * (tick % 8));
    writer.check(LogReader(storage.contents()));
  }
}

/// Of blocks that are written together those are in the log for which there is room; the journal
/// has the next one, and what they refer to.
void test_some_of_the_blocks_that_are_written_together() {
  constexpr uint64_t kReserved = 2 * BlockLog::kJournalSlots + 2;
  for (uint64_t slots = kReserved; slots < kReserved + 8; ++slots) {
    FullStorage storage(bytes_of_slots(slots));
    Writer writer(storage, kUnbounded, kUnbounded);
    writer.log.reserve_document(BlockType::kState);
    writer.log.reserve_document(BlockType::kTick, BlockLog::kJournalSlots);
    writer.append(BlockType::kNames, 20, 3);
    writer.append(BlockType::kSpans, kSpanBytes, 8 * kSpansPerBlock + 1);
    writer.tick(100);
    CHECK_EQ(writer.log.error(), ENOSPC);
    const uint64_t written = writer.log.items(BlockType::kSpans);
    CHECK(written == (slots - kReserved) * kSpansPerBlock + kSpansPerBlock);
    const LogReader reader(storage.contents());
    writer.check(reader);
    CHECK_EQ(reader.log(number(BlockType::kSpans)).items.size(), written * kSpanBytes);
    CHECK_EQ(reader.log(number(BlockType::kNames)).items.size(), 60u);
  }
}

}  // namespace

int main() {
  test_bytes_of_a_small_log();
  test_items_do_not_straddle_blocks();
  test_history_spans_bound_the_spans();
  test_only_history_is_dropped();
  test_readable_after_every_write();
  test_writes_of_a_tick();
  test_a_tick_that_is_repeated();
  test_journal_is_bounded();
  test_some_of_the_blocks_that_are_written_together();
  test_after_an_error();
  test_reserved_document();
  test_readable_after_failing_writes();
}
