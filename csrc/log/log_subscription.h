// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "log/items.h"

namespace pig {

/// What was written to a run log since somebody last took it, for readers in this process: they
/// need not search the log for what is new.
///
/// History beyond `kMaxHistoryBytes` is left out until the next `take`. Readers notice: STATE
/// counts the spans. All else is bounded by the tables of the recorder, and values of metrics,
/// which are few, by what a recording has room for (MetricSeries). Not synchronised.
class LogSubscription {
 public:
  static constexpr size_t kMaxHistoryBytes = 4 << 20;

  /// Items of a log. `first`: the index of the first of them.
  void append(uint16_t type, uint64_t first, std::span<const uint8_t> items, bool is_history) {
    if (items.empty()) return;
    if (is_history) {
      // Once one piece was left out, all that follow are: a reader sees one gap, not many.
      full_ = full_ || history_bytes_ + items.size() > kMaxHistoryBytes;
      if (full_) return;
      history_bytes_ += items.size();
    }
    put_record(appended_, type, first, items);
  }

  /// A new version of a document. Only the newest is kept.
  void replace(uint16_t type, std::span<const uint8_t> content) {
    documents_[type].assign(content.begin(), content.end());
  }

  /// Records of `type u4, bytes u4, first u8`, then as many bytes; first what was appended, in its
  /// order, then the documents.
  std::vector<uint8_t> take() {
    std::vector<uint8_t> taken = std::exchange(appended_, {});
    for (size_t type = 0; type < documents_.size(); ++type)
      if (!documents_[type].empty())
        put_record(taken, type, 0, std::exchange(documents_[type], {}));
    history_bytes_ = 0;
    full_ = false;
    return taken;
  }

 private:
  static void put_record(std::vector<uint8_t>& out, size_t type, uint64_t first,
                         std::span<const uint8_t> payload) {
    put(out, static_cast<uint32_t>(type));
    put(out, static_cast<uint32_t>(payload.size()));
    put(out, first);
    out.insert(out.end(), payload.begin(), payload.end());
  }

  std::vector<uint8_t> appended_;
  std::array<std::vector<uint8_t>, kDocumentTypes> documents_;
  size_t history_bytes_ = 0;
  bool full_ = false;
};

}  // namespace pig
