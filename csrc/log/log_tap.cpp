// SPDX-License-Identifier: Apache-2.0
#include "log/log_tap.h"

#include <utility>

namespace pig {
namespace {

struct RecordHeader {
  uint32_t type;
  uint32_t bytes;
  uint64_t first;
};

void put_record(std::vector<uint8_t>& out, uint16_t type, uint64_t first,
                std::span<const uint8_t> payload) {
  const RecordHeader header{type, static_cast<uint32_t>(payload.size()), first};
  const auto* bytes = reinterpret_cast<const uint8_t*>(&header);
  out.insert(out.end(), bytes, bytes + sizeof header);
  out.insert(out.end(), payload.begin(), payload.end());
}

}  // namespace

void LogTap::append(uint16_t type, uint64_t first, std::span<const uint8_t> items,
                    bool is_history) {
  if (items.empty()) return;
  if (is_history) {
    // Once one piece was left out, all that follow are: a reader sees one gap, not many.
    full_ = full_ || history_bytes_ + items.size() > kMaxHistoryBytes;
    if (full_) return;
    history_bytes_ += items.size();
  }
  put_record(appended_, type, first, items);
}

void LogTap::replace(uint16_t type, std::span<const uint8_t> content) {
  documents_[type].assign(content.begin(), content.end());
}

std::vector<uint8_t> LogTap::take() {
  std::vector<uint8_t> taken = std::exchange(appended_, {});
  for (size_t type = 0; type < documents_.size(); ++type) {
    if (!documents_[type].empty())
      put_record(taken, static_cast<uint16_t>(type), 0, documents_[type]);
    documents_[type].clear();
  }
  history_bytes_ = 0;
  full_ = false;
  return taken;
}

}  // namespace pig
