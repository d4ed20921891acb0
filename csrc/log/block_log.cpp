// SPDX-License-Identifier: Apache-2.0
#include "log/block_log.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "log/crc32.h"

namespace pig {
namespace {

constexpr uint32_t kBlockMagic = 0x4B424750;  // "PGBK"
constexpr uint8_t kFileMagic[8] = {0x89, 'G', 'P', 'U', 'R', 'U', 'N', '\n'};
constexpr uint32_t kMajor = 1;
constexpr uint32_t kMinor = 0;

struct FileHeader {
  uint8_t magic[8];
  uint32_t major;
  uint32_t minor;
  uint32_t slot_bytes;
  uint32_t slots_offset;
  uint64_t run_id;
  uint8_t zero[28];
  uint32_t crc;
};
static_assert(sizeof(FileHeader) == 64);

struct BlockHeader {
  uint32_t magic;
  uint16_t type;
  uint16_t reserved;
  uint64_t run_id;
  uint32_t slot;
  uint32_t length;
  uint64_t sequence;
  uint64_t first;
  uint32_t crc;
  uint32_t pad;
};
static_assert(sizeof(BlockHeader) == BlockLog::kHeaderBytes);

uint64_t slot_offset(uint32_t slot) {
  return BlockLog::kSlotsOffset + static_cast<uint64_t>(slot) * BlockLog::kSlotBytes;
}

}  // namespace

BlockLog::BlockLog(Storage& storage, uint64_t run_id, uint64_t history_spans, uint64_t max_bytes)
    : storage_(storage),
      run_id_(run_id),
      max_slots_((max_bytes - kSlotsOffset) / kSlotBytes),
      history_spans_(history_spans) {
  FileHeader header{};
  std::memcpy(header.magic, kFileMagic, sizeof kFileMagic);
  header.major = kMajor;
  header.minor = kMinor;
  header.slot_bytes = kSlotBytes;
  header.slots_offset = kSlotsOffset;
  header.run_id = run_id;
  header.crc = crc32(0, &header, offsetof(FileHeader, crc));
  write(0, &header, sizeof header);
}

void BlockLog::append(BlockType type, const void* items, size_t item_bytes, size_t count) {
  const auto* p = static_cast<const uint8_t*>(items);
  Log& log = logs_[index_of(type)];
  if (tap_ != nullptr)
    tap_->append(static_cast<uint16_t>(type), log.items, {p, item_bytes * count}, is_history(type));
  while (count > 0 && error_ == 0) {
    if (!log.open || log.length + item_bytes > kPayloadBytes) open_block(type);
    if (error_ != 0) return;
    const size_t fits = std::min(count, (kPayloadBytes - log.length) / item_bytes);
    const size_t bytes = fits * item_bytes;
    const uint32_t length = log.length + static_cast<uint32_t>(bytes);
    const uint32_t payload_crc = crc32(log.payload_crc, p, bytes);
    write(slot_offset(log.slot) + kHeaderBytes + log.length, p, bytes);
    if (error_ == 0) write_header(type, log.slot, length, log.sequence, log.first, payload_crc);
    if (error_ != 0) return;  // these items are not in the log
    log.length = length;
    log.payload_crc = payload_crc;
    log.items += fits;
    p += bytes;
    count -= fits;
  }
}

void BlockLog::open_block(BlockType type) {
  Log& log = logs_[index_of(type)];
  if (log.open) {
    if (is_history(type))
      old_.push_back({log.slot, type, static_cast<uint32_t>(log.items - log.first)});
    ++log.sequence;
  }
  const uint32_t slot = allocate(type);
  ++log.blocks;
  log.slot = slot;
  log.length = 0;
  log.payload_crc = 0;
  log.first = log.items;
  log.open = true;
  // A slot that is used again must stop being its old block before its payload changes.
  write_header(type, slot, 0, log.sequence, log.first, 0);
}

uint32_t BlockLog::allocate(BlockType type) {
  if (logs_[index_of(type)].blocks >= max_blocks(type))
    return drop(
        std::find_if(old_.begin(), old_.end(), [&](const Old& old) { return old.type == type; }));
  // With nothing left to drop the log grows over its bound: names, paths and statistics are bounded
  // by their tables.
  if (next_slot_ >= max_slots_ && !old_.empty()) return drop(old_.begin());
  return next_slot_++;
}

uint64_t BlockLog::max_blocks(BlockType type) const {
  size_t item_bytes = 0;
  if (type == BlockType::kSpans) item_bytes = sizeof(SpanItem);
  if (type == BlockType::kDeviceTimes) item_bytes = sizeof(DeviceTimeItem);
  if (item_bytes == 0) return ~uint64_t{0};
  // Rounded up, and one more for the block that is being filled: at least `history_spans_` are
  // kept.
  return history_spans_ / (kPayloadBytes / item_bytes) + 2;
}

uint32_t BlockLog::drop(std::deque<Old>::iterator oldest) {
  const Old old = *oldest;
  old_.erase(oldest);
  --logs_[index_of(old.type)].blocks;
  dropped_[index_of(old.type)] += old.items;
  return old.slot;
}

void BlockLog::reserve_document(BlockType type) {
  const std::vector<uint8_t> nothing(kSlotBytes);
  for (std::vector<uint32_t>& slots : documents_[index_of(type)].slots) {
    slots.push_back(allocate(type));
    write(slot_offset(slots.back()), nothing.data(), nothing.size());
  }
}

void BlockLog::write_document(BlockType type, std::span<const uint8_t> content) {
  Document& document = documents_[index_of(type)];
  if (tap_ != nullptr) tap_->replace(static_cast<uint16_t>(type), content);
  const uint64_t version = ++document.version;
  std::vector<uint32_t>& slots = document.slots[document.next];
  const size_t parts = std::max<size_t>(1, (content.size() + kPayloadBytes - 1) / kPayloadBytes);
  // After an error only what needs no new room is tried: the last STATE can then say why the
  // history ends.
  if (error_ != 0 && slots.size() < parts) return;
  while (slots.size() < parts) slots.push_back(allocate(type));
  bool whole = true;
  for (size_t part = 0; part < parts && whole; ++part) {
    const auto piece =
        content.subspan(part * kPayloadBytes,
                        std::min<size_t>(kPayloadBytes, content.size() - part * kPayloadBytes));
    // What stood in the slot ends before its payload changes: a process killed now leaves no block
    // that looks damaged.
    whole = write_header(type, slots[part], 0, 0, 0, 0) &&
            write(slot_offset(slots[part]) + kHeaderBytes, piece.data(), piece.size()) &&
            write_header(type, slots[part], static_cast<uint32_t>(piece.size()), version,
                         part | parts << 32, crc32(0, piece.data(), piece.size()));
  }
  // A version that did not get whole is replaced by the next: the other set holds the one that
  // stands.
  if (whole) document.next = 1 - document.next;
}

bool BlockLog::write_header(BlockType type, uint32_t slot, uint32_t length, uint64_t sequence,
                            uint64_t first, uint32_t payload_crc) {
  BlockHeader header{
      kBlockMagic, static_cast<uint16_t>(type), 0, run_id_, slot, length, sequence, first, 0, 0};
  header.crc = crc32(payload_crc, &header, offsetof(BlockHeader, crc));
  return write(slot_offset(slot), &header, sizeof header);
}

bool BlockLog::write(uint64_t offset, const void* data, size_t bytes) {
  if (bytes == 0) return true;
  int error = std::exchange(checked_, true) ? 0 : storage_.check();
  if (error == 0) error = storage_.write(offset, data, bytes);
  if (error_ == 0) error_ = error;
  return error == 0;
}

}  // namespace pig
