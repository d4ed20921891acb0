// SPDX-License-Identifier: Apache-2.0
#include "log/block_log.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "log/crc32.h"

namespace pig {
namespace {

constexpr uint32_t kBlockMagic = 0x4B424750;  // "PGBK"
constexpr uint32_t kMajor = 2;
constexpr uint32_t kMinor = 1;

struct FileHeader {
  uint8_t magic[sizeof kFileMagic];
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
  uint32_t crc;         ///< of the payload, and of what stands before
  uint32_t header_crc;  ///< of what stands before
};
static_assert(sizeof(BlockHeader) == BlockLog::kHeaderBytes);

/// Before each section of the journal.
struct SectionHeader {
  uint32_t type;
  uint32_t length;
  uint64_t sequence;
  uint64_t first;
  uint64_t offset;  ///< in the payload of the block
};
static_assert(sizeof(SectionHeader) == 32);

/// So many full blocks are written together.
constexpr size_t kBatch = 16;
constexpr size_t kJournalBytes = size_t{BlockLog::kJournalSlots} * BlockLog::kPayloadBytes;
constexpr size_t kJournalImageBytes = size_t{BlockLog::kJournalSlots} * BlockLog::kSlotBytes;

uint64_t slot_offset(uint32_t slot) {
  return BlockLog::kSlotsOffset + static_cast<uint64_t>(slot) * BlockLog::kSlotBytes;
}

/// Appends to the image of a document, which has room for a header at the begin of each slot.
void put_content(std::vector<uint8_t>& image, const void* data, size_t bytes) {
  const auto* p = static_cast<const uint8_t*>(data);
  while (bytes > 0) {
    size_t used = image.size() % BlockLog::kSlotBytes;
    if (used == 0) image.resize(image.size() + (used = BlockLog::kHeaderBytes));
    const size_t fits = std::min<size_t>(bytes, BlockLog::kSlotBytes - used);
    image.insert(image.end(), p, p + fits);
    p += fits;
    bytes -= fits;
  }
}

void put_section(std::vector<uint8_t>& journal, const SectionHeader& header, const uint8_t* data) {
  put_content(journal, &header, sizeof header);
  put_content(journal, data, header.length);
}

}  // namespace

BlockLog::BlockLog(Storage& storage, uint64_t run_id, uint64_t history_spans, uint64_t max_bytes)
    : storage_(storage),
      run_id_(run_id),
      max_slots_((max_bytes - kSlotsOffset) / kSlotBytes),
      history_spans_(history_spans) {
  full_.reserve(kBatch);
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
  for (LogSubscription* subscription : subscriptions_)
    subscription->append(static_cast<uint16_t>(type), log.items, {p, item_bytes * count},
                         is_history(type));
  while (count > 0 && error_ == 0) {
    Block& newest = log.newest;
    if (newest.payload.size() + item_bytes > kPayloadBytes) {
      const uint64_t sequence = newest.sequence + 1;
      full_.push_back({type, log.items, std::move(newest)});
      newest = {sequence, log.items, {}, 0, 0, {}};
      if (full_.size() == kBatch) write_full_blocks();
      continue;
    }
    if (newest.payload.empty()) newest.payload.reserve(kPayloadBytes);
    const size_t fits = std::min(count, (kPayloadBytes - newest.payload.size()) / item_bytes);
    const size_t bytes = fits * item_bytes;
    newest.payload.insert(newest.payload.end(), p, p + bytes);
    newest.payload_crc = crc32(newest.payload_crc, p, bytes);
    log.items += fits;
    has_news_ = true;
    p += bytes;
    count -= fits;
  }
}

void BlockLog::write_full_blocks() {
  for (size_t begin = 0; begin < full_.size() && error_ == 0;) {
    // As many as get slots that lie together. These are new ones: where history has to be dropped
    // for a block, that may be the block before it, so that has to be written first.
    size_t end = begin;
    while (end < full_.size() && !full_[end].block.slot && has_new_slot(full_[end].type)) {
      full_[end].block.slot = allocate(full_[end].type);
      ++end;
    }
    if (end == begin) {
      Block& block = full_[end].block;
      if (!block.slot) block.slot = allocate(full_[end].type);
      ++end;
    }
    // Where not all can be written, those before the first that can't are.
    if (end - begin > 1 && write_together(begin, end)) begin = end;
    for (; begin < end && write_together(begin, begin + 1); ++begin) continue;
    begin = end;
  }
  if (error_ != 0) take_back_full_blocks();
  full_.clear();
}

/// After an error: of each log the first block that could not be written is the newest again.
void BlockLog::take_back_full_blocks() {
  for (FullBlock& full : full_) {
    Log& log = logs_[index_of(full.type)];
    if (full.next <= log.in_slots || log.newest.sequence < full.block.sequence) continue;
    log.newest = std::move(full.block);
    log.items = full.next;
  }
}

/// Writes full blocks of slots that lie together.
bool BlockLog::write_together(size_t begin, size_t end) {
  image_.clear();
  for (size_t at = begin; at < end; ++at) {
    image_.resize((at - begin) * kSlotBytes);
    put_block(full_[at].type, full_[at].block);
  }
  const Block& first = full_[begin].block;
  const bool whole =
      first.flushed == 0 ? write_image(*first.slot) : extend(full_[begin].type, full_[begin].block);
  if (!whole) return false;
  for (size_t at = begin; at < end; ++at) {
    const auto& [type, next, block] = full_[at];
    logs_[index_of(type)].in_slots = next;
    if (is_history(type))
      old_.push_back({*block.slot, type, static_cast<uint32_t>(next - block.first)});
  }
  return true;
}

/// Brings the slot of a block, which has its beginning, up to date.
bool BlockLog::extend(BlockType type, const Block& block) {
  if (!write(slot_offset(*block.slot) + kHeaderBytes + block.flushed,
             block.payload.data() + block.flushed, block.payload.size() - block.flushed))
    return false;
  image_.clear();
  put(image_, header_of(type, *block.slot, block.payload.size(), block.sequence, block.first,
                        block.payload_crc));
  return write_image(*block.slot);
}

bool BlockLog::flush(BlockType type) {
  Log& log = logs_[index_of(type)];
  Block& block = log.newest;
  if (block.payload.size() == block.flushed) return true;
  if (block.slot) {
    if (!extend(type, block)) return false;
  } else {
    block.slot = allocate(type);
    image_.clear();
    put_block(type, block);
    if (!write_image(*block.slot)) return false;
  }
  block.flushed = static_cast<uint32_t>(block.payload.size());
  log.in_slots = log.items;
  return true;
}

void BlockLog::flush_slow() {
  write_full_blocks();
  for (size_t type = kDocumentTypes; type < kBlockTypes && error_ == 0; ++type) {
    Log& log = logs_[type];
    const uint64_t sequence = log.newest.sequence;
    if (std::exchange(log.sequence_seen, sequence) == sequence) flush(static_cast<BlockType>(type));
  }
}

void BlockLog::flush() {
  write_full_blocks();
  for (size_t type = kDocumentTypes; type < kBlockTypes && error_ == 0; ++type)
    flush(static_cast<BlockType>(type));
  if (error_ != 0) end();
}

void BlockLog::write_tick(std::span<const uint8_t> state) {
  if (error_ == 0) write_full_blocks();
  if (error_ != 0) return end();
  const bool is_apart = state.size() > kJournalBytes / 2;
  if (is_apart) write_document(BlockType::kState, state);
  size_t bytes = is_apart ? 0 : sizeof(SectionHeader) + state.size();
  for (const Log& log : logs_)
    if (const size_t unflushed = log.newest.payload.size() - log.newest.flushed; unflushed != 0)
      bytes += sizeof(SectionHeader) + unflushed;
  while (bytes > kJournalBytes && error_ == 0) {
    const auto longest =
        std::max_element(logs_.begin(), logs_.end(), [](const Log& a, const Log& b) {
          return a.newest.payload.size() - a.newest.flushed <
                 b.newest.payload.size() - b.newest.flushed;
        });
    bytes -= sizeof(SectionHeader) + longest->newest.payload.size() - longest->newest.flushed;
    flush(static_cast<BlockType>(longest - logs_.begin()));
  }
  if (error_ != 0) return end();

  journal_.clear();
  if (!is_apart) {
    const auto type = static_cast<uint16_t>(BlockType::kState);
    for (LogSubscription* subscription : subscriptions_) subscription->replace(type, state);
    put_section(journal_,
                {type, static_cast<uint32_t>(state.size()),
                 ++documents_[index_of(BlockType::kState)].version, 0, 0},
                state.data());
  }
  state_end_ = journal_.size();
  for (uint32_t type = kDocumentTypes; type < kBlockTypes; ++type) put_unflushed(type);
  if (!write_version(BlockType::kTick, journal_)) return end();
  for (Log& log : logs_) log.written = log.items;
  has_news_ = false;
}

bool BlockLog::repeat_tick(size_t at, std::span<const uint8_t> bytes) {
  if (error_ != 0 || has_news_ || !subscriptions_.empty() || state_end_ == 0) return false;
  uint8_t* section = &journal_[kHeaderBytes];
  const uint64_t version = ++documents_[index_of(BlockType::kState)].version;
  std::memcpy(section + offsetof(SectionHeader, sequence), &version, sizeof version);
  std::memcpy(section + sizeof(SectionHeader) + at, bytes.data(), bytes.size());
  return write_version(BlockType::kTick, journal_);
}

void BlockLog::put_unflushed(uint32_t type) {
  const Block& block = logs_[type].newest;
  const auto length = static_cast<uint32_t>(block.payload.size() - block.flushed);
  if (length != 0)
    put_section(journal_, {type, length, block.sequence, block.first, block.flushed},
                block.payload.data() + block.flushed);
}

/// After an error: the journal has room on the disk, so that what it can hold is not lost. From
/// then on the log has what a reader finds of it.
void BlockLog::end() {
  if (std::exchange(has_ended_, true)) return;
  journal_.resize(state_end_);
  std::array<bool, kBlockTypes> is_in{};
  for (uint32_t type = kDocumentTypes; type < kBlockTypes; ++type) {
    const size_t length = journal_.size();
    put_unflushed(type);
    is_in[type] = journal_.size() <= kJournalImageBytes;
    if (!is_in[type]) journal_.resize(length);
  }
  const bool whole = write_version(BlockType::kTick, journal_);
  for (size_t type = 0; type < kBlockTypes; ++type) {
    Log& log = logs_[type];
    // Otherwise the journal of the last tick stands.
    const uint64_t in_journal = whole ? (is_in[type] ? log.items : 0) : log.written;
    log.items = std::max(log.in_slots, in_journal);
  }
}

bool BlockLog::has_new_slot(BlockType type) const {
  return logs_[index_of(type)].blocks < max_blocks(type) && next_slot_ < max_slots_;
}

uint32_t BlockLog::allocate(BlockType type) {
  uint64_t& blocks = logs_[index_of(type)].blocks;
  if (blocks++ >= max_blocks(type))
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

void BlockLog::reserve_document(BlockType type, uint32_t blocks) {
  for (std::vector<uint32_t>& slots : documents_[index_of(type)].slots) {
    image_.clear();
    for (uint32_t i = 0; i < blocks; ++i) {
      slots.push_back(allocate(type));
      put(image_, header_of(type, slots.back(), 0, 0, 0, 0));
      image_.resize(size_t{i + 1} * kSlotBytes);
    }
    write_image(slots.front());
  }
}

void BlockLog::write_document(BlockType type, std::span<const uint8_t> content) {
  for (LogSubscription* subscription : subscriptions_)
    subscription->replace(static_cast<uint16_t>(type), content);
  image_.clear();
  put_content(image_, content.data(), content.size());
  write_version(type, image_);
}

/// Puts the headers into the image, which has the content, and writes it.
bool BlockLog::write_version(BlockType type, std::vector<uint8_t>& image) {
  Document& document = documents_[index_of(type)];
  const uint64_t version = ++document.version;
  std::vector<uint32_t>& slots = document.slots[document.next];
  if (image.empty()) image.resize(kHeaderBytes);
  const size_t parts = (image.size() + kSlotBytes - 1) / kSlotBytes;
  // After an error only what needs no new room is tried: the last STATE can then say why the
  // history ends. Memory may be there again.
  if (error_ != 0 && error_ != ENOMEM && slots.size() < parts) return false;
  while (slots.size() < parts) slots.push_back(allocate(type));
  for (size_t part = 0; part < parts;) {
    const size_t first = part;
    // Parts whose slots lie together go there together.
    size_t end = 0;
    do {
      uint8_t* block = &image[part * kSlotBytes];
      end = std::min<size_t>(image.size(), (part + 1) * kSlotBytes);
      const size_t length = end - part * kSlotBytes - kHeaderBytes;
      const HeaderBytes header = header_of(type, slots[part], length, version, part | parts << 32,
                                           crc32(0, block + kHeaderBytes, length));
      std::memcpy(block, header.data(), sizeof header);
      ++part;
    } while (part < parts && slots[part] == slots[part - 1] + 1);
    // A version that did not get whole is replaced by the next: the other set holds the one that
    // stands.
    if (!write(slot_offset(slots[first]), &image[first * kSlotBytes], end - first * kSlotBytes))
      return false;
  }
  document.next = 1 - document.next;
  return true;
}

BlockLog::HeaderBytes BlockLog::header_of(BlockType type, uint32_t slot, size_t length,
                                          uint64_t sequence, uint64_t first,
                                          uint32_t payload_crc) const {
  BlockHeader header{kBlockMagic, static_cast<uint16_t>(type),
                     0,           run_id_,
                     slot,        static_cast<uint32_t>(length),
                     sequence,    first,
                     0,           0};
  header.crc = crc32(payload_crc, &header, offsetof(BlockHeader, crc));
  header.header_crc = crc32(0, &header, offsetof(BlockHeader, header_crc));
  return std::bit_cast<HeaderBytes>(header);
}

void BlockLog::put_block(BlockType type, const Block& block) {
  put(image_, header_of(type, *block.slot, block.payload.size(), block.sequence, block.first,
                        block.payload_crc));
  image_.insert(image_.end(), block.payload.begin(), block.payload.end());
}

bool BlockLog::write_image(uint32_t slot) {
  return write(slot_offset(slot), image_.data(), image_.size());
}

bool BlockLog::write(uint64_t offset, const void* data, size_t bytes) {
  int error = std::exchange(checked_, true) ? 0 : storage_.check();
  if (error == 0) error = storage_.write(offset, data, bytes);
  if (error_ == 0) error_ = error;
  return error == 0;
}

}  // namespace pig
