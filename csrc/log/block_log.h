// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "log/items.h"
#include "log/log_tap.h"
#include "log/storage.h"

namespace pig {

/// Writes a run log: framed blocks in slots of a storage, as docs/run-file.md describes.
///
/// Two kinds of content. A log grows: its newest block is extended in place, payload before header,
/// so the block on disk is valid at every moment. A document is replaced, alternately in two sets
/// of slots, so one whole version always stands. When the bound is reached, the oldest block of
/// history (spans, steps, device times) gives its slot away. The first failing write ends the logs;
/// `error()` says which it was.
class BlockLog {
 public:
  static constexpr uint32_t kSlotBytes = 16384;
  static constexpr uint32_t kSlotsOffset = 4096;
  static constexpr uint32_t kHeaderBytes = 48;
  static constexpr uint32_t kPayloadBytes = kSlotBytes - kHeaderBytes;

  /// By type: items of history that were dropped to stay within the bounds.
  using Dropped = std::array<uint64_t, kBlockTypes>;

  /// `history_spans` and `max_bytes` bound the spans (and device times) kept and the log's size.
  BlockLog(Storage& storage, uint64_t run_id, uint64_t history_spans, uint64_t max_bytes);

  /// Appends `count` items of equal size.
  void append(BlockType type, const void* items, size_t item_bytes, size_t count);

  /// Appends one item of any size up to a block.
  void append(BlockType type, std::span<const uint8_t> item) {
    append(type, item.data(), item.size(), 1);
  }

  /// Takes room on the disk for both versions of a document of one block, so that later it can be
  /// replaced where nothing else fits any more.
  void reserve_document(BlockType type);

  void write_document(BlockType type, std::span<const uint8_t> content);

  /// What is written from now on goes to `tap` too, also after an error; to none when null.
  void set_tap(LogTap* tap) { tap_ = tap; }

  /// Items appended so far, those since dropped included.
  uint64_t items(BlockType type) const { return logs_[index_of(type)].items; }
  const Dropped& dropped() const { return dropped_; }

  /// A group of writes has ended: the storage is checked before the next one.
  void end_writes() { checked_ = false; }

  /// 0, or what the storage said when a write failed.
  int error() const { return error_; }

 private:
  struct Log {
    uint32_t slot = 0;
    uint32_t length = 0;
    uint32_t payload_crc = 0;
    bool open = false;
    uint64_t sequence = 0;
    uint64_t first = 0;
    uint64_t items = 0;
    uint64_t blocks = 0;  ///< of history types: blocks that stand
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
           type == BlockType::kDeviceTimes || type == BlockType::kSyncs;
  }
  uint64_t max_blocks(BlockType type) const;
  void open_block(BlockType type);
  uint32_t allocate(BlockType type);
  uint32_t drop(std::deque<Old>::iterator oldest);
  bool write_header(BlockType type, uint32_t slot, uint32_t length, uint64_t sequence,
                    uint64_t first, uint32_t payload_crc);
  bool write(uint64_t offset, const void* data, size_t bytes);

  Storage& storage_;
  LogTap* tap_ = nullptr;
  uint64_t run_id_;
  uint64_t max_slots_;
  uint64_t history_spans_;
  uint32_t next_slot_ = 0;
  std::array<Log, kBlockTypes> logs_{};
  std::array<Document, kDocumentTypes> documents_{};
  std::deque<Old> old_;
  Dropped dropped_{};
  bool checked_ = false;
  int error_ = 0;
};

}  // namespace pig
