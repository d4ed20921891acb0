// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
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
    CHECK_EQ(get<uint32_t>(bytes, 8), 1u);
    CHECK_EQ(get<uint32_t>(bytes, 12), 0u);
    CHECK_EQ(get<uint32_t>(bytes, 16), kSlotBytes);
    CHECK_EQ(get<uint32_t>(bytes, 20), kSlotsOffset);
    CHECK_EQ(get<uint32_t>(bytes, 60), crc(0, &bytes[0], 60));
    run_id_ = get<uint64_t>(bytes, 24);
    for (uint32_t slot = 0; kSlotsOffset + uint64_t{slot} * kSlotBytes < bytes.size(); ++slot)
      read_slot(bytes, slot);
  }

  /// Slots that hold a valid block.
  uint32_t blocks() const { return blocks_; }

  Log log(uint16_t type) const {
    Log log;
    const auto found = logs_.find(type);
    if (found == logs_.end()) return log;
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
    if (get<uint32_t>(bytes, at) != 0x4B424750) return;
    const auto type = get<uint16_t>(bytes, at + 4);
    const auto length = get<uint32_t>(bytes, at + 20);
    if (get<uint64_t>(bytes, at + 8) != run_id_ || get<uint32_t>(bytes, at + 16) != slot ||
        length > kSlotBytes - kHeaderBytes || at + kHeaderBytes + length > bytes.size())
      return;
    const auto payload = bytes.begin() + static_cast<std::ptrdiff_t>(at + kHeaderBytes);
    const Bytes content(payload, payload + length);
    const uint32_t expected = crc(crc(0, content.data(), content.size()), &bytes[at], 40);
    if (get<uint32_t>(bytes, at + 40) != expected) return;
    ++blocks_;
    const auto sequence = get<uint64_t>(bytes, at + 24);
    const auto first = get<uint64_t>(bytes, at + 32);
    if (type >= kFirstLog) {
      CHECK(logs_[type].emplace(sequence, Block{first, content}).second);
    } else {
      Version& version = documents_[type][sequence];
      version.count = static_cast<uint32_t>(first >> 32);
      version.parts[static_cast<uint32_t>(first)] = content;
    }
  }

  uint64_t run_id_ = 0;
  uint32_t blocks_ = 0;
  std::map<uint16_t, std::map<uint64_t, Block>> logs_;
  std::map<uint16_t, std::map<uint64_t, Version>> documents_;
};
