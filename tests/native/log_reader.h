// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "check.h"

/// Reads run logs as docs/run-file.md describes them, and shares no code with what writes them.
class LogReader {
 public:
  using Bytes = std::vector<uint8_t>;

  struct Block {
    uint64_t first;
    Bytes payload;
  };

  /// The blocks of a log up to the first gap: items `first` and those after it.
  struct Log {
    uint64_t first = 0;
    uint32_t blocks = 0;
    Bytes items;
  };

  struct Document {
    uint64_t version;
    Bytes content;
  };

  /// What is damaged is left out, as a reader of a cut-off file must. The file header must be good.
  explicit LogReader(const Bytes& bytes) {
    CHECK(bytes.size() >= 64);
    CHECK(std::memcmp(&bytes[0], "\x89GPURUN\n", 8) == 0);
    CHECK_EQ(get<uint32_t>(bytes, 8), 2u);
    CHECK_EQ(get<uint32_t>(bytes, 12), 1u);
    CHECK_EQ(get<uint32_t>(bytes, 16), kSlotBytes);
    CHECK_EQ(get<uint32_t>(bytes, 20), kSlotsOffset);
    CHECK_EQ(get<uint32_t>(bytes, 60), crc(0, &bytes[0], 60));
    run_id_ = get<uint64_t>(bytes, 24);
    for (uint32_t slot = 0; kSlotsOffset + uint64_t{slot} * kSlotBytes < bytes.size(); ++slot)
      read_slot(bytes, slot);
    read_journal();
  }

  /// Slots that hold a valid block.
  uint32_t blocks() const { return blocks_; }

  /// Slots of logs that hold something else, but for the newest block of a log that was only partly
  /// written.
  uint32_t damaged() const { return damaged_; }

  Log log(uint16_t type) const {
    Log log;
    const auto found = logs_.find(type);
    if (found == logs_.end() || found->second.empty()) return log;
    log.first = found->second.begin()->second.first;
    uint64_t sequence = found->second.begin()->first;
    for (const auto& [at, block] : found->second) {
      if (at != sequence++) break;
      ++log.blocks;
      log.items.insert(log.items.end(), block.payload.begin(), block.payload.end());
    }
    return log;
  }

  /// The newest whole version.
  std::optional<Document> document(uint16_t type) const {
    const auto found = documents_.find(type);
    if (found == documents_.end()) return std::nullopt;
    for (auto version = found->second.rbegin(); version != found->second.rend(); ++version) {
      const auto& [count, parts] = version->second;
      if (parts.size() != count) continue;
      Document document{version->first, {}};
      for (const auto& [part, payload] : parts)
        document.content.insert(document.content.end(), payload.begin(), payload.end());
      return document;
    }
    return std::nullopt;
  }

  template <typename T>
  static T get(const Bytes& bytes, size_t offset) {
    CHECK(offset + sizeof(T) <= bytes.size());
    T value;
    std::memcpy(&value, &bytes[offset], sizeof value);
    return value;
  }

 private:
  static constexpr uint32_t kSlotBytes = 16384;
  static constexpr uint32_t kSlotsOffset = 4096;
  static constexpr uint32_t kHeaderBytes = 48;
  static constexpr uint16_t kTick = 5;
  static constexpr uint16_t kFirstLog = 16;

  struct Version {
    uint32_t count = 0;
    std::map<uint32_t, Bytes> parts;
  };

  static uint32_t crc(uint32_t crc, const uint8_t* data, size_t bytes) {
    static const std::array<uint32_t, 256> table = [] {
      std::array<uint32_t, 256> entries{};
      for (uint32_t i = 0; i < 256; ++i) {
        entries[i] = i;
        for (int bit = 0; bit < 8; ++bit)
          entries[i] = (entries[i] & 1) != 0 ? entries[i] >> 1 ^ 0xEDB88320u : entries[i] >> 1;
      }
      return entries;
    }();
    crc = ~crc;
    for (size_t i = 0; i < bytes; ++i) crc = crc >> 8 ^ table[(crc ^ data[i]) & 0xFF];
    return ~crc;
  }

  void read_slot(const Bytes& bytes, uint32_t slot) {
    const size_t at = kSlotsOffset + size_t{slot} * kSlotBytes;
    if (at + kHeaderBytes > bytes.size()) return;
    const auto magic = get<uint32_t>(bytes, at);
    if (magic == 0) return;
    CHECK_EQ(magic, 0x4B424750u);
    const auto type = get<uint16_t>(bytes, at + 4);
    const auto length = get<uint32_t>(bytes, at + 20);
    const auto sequence = get<uint64_t>(bytes, at + 24);
    const auto first = get<uint64_t>(bytes, at + 32);
    // Whole, for it lies in one page.
    CHECK_EQ(get<uint32_t>(bytes, at + 44), crc(0, &bytes[at], 44));
    CHECK_EQ(get<uint64_t>(bytes, at + 8), run_id_);
    CHECK_EQ(get<uint32_t>(bytes, at + 16), slot);
    const size_t end = std::min(bytes.size(), at + kHeaderBytes + length);
    const Bytes content(bytes.begin() + static_cast<std::ptrdiff_t>(at + kHeaderBytes),
                        bytes.begin() + static_cast<std::ptrdiff_t>(end));
    const uint32_t expected = crc(crc(0, content.data(), content.size()), &bytes[at], 40);
    if (content.size() != length || get<uint32_t>(bytes, at + 40) != expected) {
      if (type >= kFirstLog) partly_written_.emplace_back(type, sequence);
      return;
    }
    ++blocks_;
    if (type >= kFirstLog) {
      CHECK(logs_[type].emplace(sequence, Block{first, content}).second);
    } else {
      Version& version = documents_[type][sequence];
      version.count = static_cast<uint32_t>(first >> 32);
      version.parts[static_cast<uint32_t>(first)] = content;
    }
  }

  void read_journal() {
    for (const auto& [type, sequence] : partly_written_) {
      const auto& log = logs_[type];
      if (!log.empty() && sequence < log.rbegin()->first) ++damaged_;
    }
    const std::optional<Document> journal = document(kTick);
    if (!journal) return;
    const Bytes& bytes = journal->content;
    for (size_t at = 0; at < bytes.size();) {
      const auto type = static_cast<uint16_t>(get<uint32_t>(bytes, at));
      const auto length = get<uint32_t>(bytes, at + 4);
      const auto sequence = get<uint64_t>(bytes, at + 8);
      const auto first = get<uint64_t>(bytes, at + 16);
      const auto offset = get<uint64_t>(bytes, at + 24);
      at += 32;
      CHECK(at + length <= bytes.size());
      const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(at);
      const Bytes content(begin, begin + length);
      at += length;
      if (type < kFirstLog) {
        documents_[type][sequence] = Version{1, {{0u, content}}};
        continue;
      }
      std::map<uint64_t, Block>& log = logs_[type];
      if (!log.empty() && sequence > log.rbegin()->first + 1) CHECK(false);
      if (!log.empty() && sequence < log.begin()->first) continue;
      Block& block = log.emplace(sequence, Block{first, {}}).first->second;
      CHECK_EQ(block.first, first);
      CHECK(block.payload.size() >= offset);
      if (block.payload.size() >= offset + length) continue;
      block.payload.resize(offset);
      block.payload.insert(block.payload.end(), content.begin(), content.end());
    }
  }

  uint64_t run_id_ = 0;
  uint32_t blocks_ = 0;
  uint32_t damaged_ = 0;
  std::vector<std::pair<uint16_t, uint64_t>> partly_written_;  ///< types and sequences
  std::map<uint16_t, std::map<uint64_t, Block>> logs_;
  std::map<uint16_t, std::map<uint64_t, Version>> documents_;
};
