// SPDX-License-Identifier: Apache-2.0
//
// Writes a run log: framed blocks in slots of a storage, as docs/run-file.md describes.
//
// Two kinds of content. A log grows. A document is replaced, alternately in two sets of slots, so
// that one whole version always stands.
//
// The newest block of each log is kept in memory until it is full, and goes to its slot with one
// write. What no slot holds yet is in the journal, the TICK document, together with STATE: so a
// tick is one write, whatever is new. Of a log that takes long to fill a block the newest one is
// flushed now and then: it goes to its slot as it is, and is extended there later, payload before
// header. Then the journal, which is written at every tick, has no more than what is new since.
//
// A write that is cut short, because the process was killed, leaves a block whose header is right
// and whose payload is not. It is the newest of its log, and the journal that stands has what it
// began with; or it is a document's, of which the other version stands.
//
// When the bound is reached, the oldest block of history (spans, steps, device times, syncs,
// collectives, phases in graphs) gives its slot away. The first failing write ends the logs;
// `error()` says which it was.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "log/items.h"
#include "log/log_subscription.h"
#include "log/storage.h"

namespace pig {

class BlockLog {
 public:
  static constexpr uint32_t kSlotBytes = 16384;
  static constexpr uint32_t kSlotsOffset = 4096;
  static constexpr uint32_t kHeaderBytes = 48;
  static constexpr uint32_t kPayloadBytes = kSlotBytes - kHeaderBytes;
  /// The journal is at most so long.
  static constexpr uint32_t kJournalSlots = 2;

  /// By type: items of history that were dropped to stay within the bounds.
  using Dropped = std::array<uint64_t, kBlockTypes>;

  /// `history_spans` and `max_bytes` bound the spans (and device times) kept and the log's size.
  BlockLog(Storage& storage, uint64_t run_id, uint64_t history_spans, uint64_t max_bytes);

  /// Appends `count` items of equal size. The next tick writes them.
  void append(BlockType type, const void* items, size_t item_bytes, size_t count);

  /// Appends one item of any size up to a block.
  void append(BlockType type, std::span<const uint8_t> item) {
    append(type, item.data(), item.size(), 1);
  }

  /// Takes room on the disk for both versions of a document of so many blocks, so that later it can
  /// be replaced where nothing else fits any more.
  void reserve_document(BlockType type, uint32_t blocks = 1);

  void write_document(BlockType type, std::span<const uint8_t> content);

  /// Writes what was appended, and STATE; after an error what the journal has room for, once.
  void write_tick(std::span<const uint8_t> state);
  /// Writes the last tick again, with some bytes of STATE replaced from `at` on. False where that
  /// can't be done, because there is more to write.
  bool repeat_tick(size_t at, std::span<const uint8_t> bytes);
  /// Flushes the logs that have not filled a block since the last call.
  void flush_slow();
  /// Flushes all logs: no journal is needed to read them.
  void flush();

  /// The harvest's writes have ended: before the next one the storage is checked.
  void end_writes() { checked_ = false; }

  /// What is written from now on goes to `subscription` too, also after an error; to none when
  /// null.
  void add_subscription(LogSubscription* subscription) { subscriptions_.push_back(subscription); }
  void remove_subscription(LogSubscription* subscription) {
    std::erase(subscriptions_, subscription);
  }

  /// Whether anything was appended since the last tick.
  bool has_news() const { return has_news_; }
  /// Items appended so far, those since dropped included. After an error: those that were written.
  uint64_t items(BlockType type) const { return logs_[index_of(type)].items; }
  const Dropped& dropped() const { return dropped_; }
  uint64_t dropped(BlockType type) const { return dropped_[index_of(type)]; }

  /// 0, or what the storage said when a write failed.
  int error() const { return error_; }
  /// From now on there is an error, if there was none.
  void end_history(int error) {
    if (error_ == 0) error_ = error;
  }

 private:
  using HeaderBytes = std::array<uint8_t, kHeaderBytes>;

  struct Block {
    uint64_t sequence = 0;
    uint64_t first = 0;
    std::vector<uint8_t> payload;
    uint32_t payload_crc = 0;
    uint32_t flushed = 0;  ///< bytes of the payload that the slot holds
    std::optional<uint32_t> slot;
  };
  struct Log {
    Block newest;
    uint64_t items = 0;
    uint64_t in_slots = 0;                  ///< items of which all stand in slots
    uint64_t written = 0;                   ///< those of which the last tick's journal had the rest
    uint64_t blocks = 0;                    ///< that have a slot
    uint64_t sequence_seen = ~uint64_t{0};  ///< of the newest block, when `flush_slow` last looked
  };
  struct FullBlock {
    BlockType type;
    uint64_t next;  ///< the item behind its last one
    Block block;
  };
  struct Document {
    uint64_t version = 0;
    std::array<std::vector<uint32_t>, 2> slots;
    size_t next = 0;  ///< the set that the next version goes to
  };
  /// A full block of history, which may be dropped.
  struct Old {
    uint32_t slot;
    BlockType type;
    uint32_t items;
  };

  static bool is_history(BlockType type) {
    return type == BlockType::kSpans || type == BlockType::kSteps ||
           type == BlockType::kDeviceTimes || type == BlockType::kSyncs ||
           type == BlockType::kCollectives || type == BlockType::kGraphPhases ||
           type == BlockType::kCauses;
  }
  uint64_t max_blocks(BlockType type) const;
  bool has_new_slot(BlockType type) const;
  uint32_t allocate(BlockType type);
  uint32_t drop(std::deque<Old>::iterator oldest);
  void write_full_blocks();
  bool write_together(size_t begin, size_t end);
  bool extend(BlockType type, const Block& block);
  bool flush(BlockType type);
  void take_back_full_blocks();
  void put_unflushed(uint32_t type);
  void end();
  bool write_version(BlockType type, std::vector<uint8_t>& image);
  HeaderBytes header_of(BlockType type, uint32_t slot, size_t length, uint64_t sequence,
                        uint64_t first, uint32_t payload_crc) const;
  void put_block(BlockType type, const Block& block);
  bool write_image(uint32_t slot);
  bool write(uint64_t offset, const void* data, size_t bytes);

  Storage& storage_;
  std::vector<LogSubscription*> subscriptions_;
  uint64_t run_id_;
  uint64_t max_slots_;
  uint64_t history_spans_;
  uint32_t next_slot_ = 0;
  std::array<Log, kBlockTypes> logs_{};
  std::array<Document, kDocumentTypes> documents_{};
  std::vector<FullBlock> full_;  ///< not in their slots yet
  std::deque<Old> old_;
  Dropped dropped_{};
  std::vector<uint8_t> journal_;  ///< as it was last written
  size_t state_end_ = 0;          ///< of STATE in the journal; 0: it is not there
  std::vector<uint8_t> image_;    ///< of slots that are written together; kept for its memory
  bool has_news_ = false;
  bool has_ended_ = false;
  bool checked_ = false;
  int error_ = 0;
};

}  // namespace pig
