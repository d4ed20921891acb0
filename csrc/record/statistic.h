// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "log/items.h"
#include "record/histogram.h"

namespace pig {

/// Count, sum, sum of squares, extremes and histogram of one quantity, all exact integers.
class Statistic {
 public:
  /// Throws std::bad_alloc, and then nothing was added: a count that contradicts the histogram
  /// would make all statistics of the run unreadable.
  void add(uint64_t value) {
    histogram_.add(value);
    ++count_;
    total_ += value;
    squares_ += static_cast<unsigned __int128>(value) * value;
    min_ = std::min(min_, value);
    max_ = std::max(max_, value);
  }

  /// Afterwards `add` throws nothing for such a value.
  void make_room(uint64_t value) { histogram_.make_room(value); }

  void merge(const Statistic& other) {
    count_ += other.count_;
    total_ += other.total_;
    squares_ += other.squares_;
    min_ = std::min(min_, other.min_);
    max_ = std::max(max_, other.max_);
    histogram_.merge(other.histogram_);
  }

  uint64_t count() const { return count_; }
  /// `percent` of the values are at most this, or a little less; 0 without values.
  uint64_t quantile(uint32_t percent) const {
    // Rounded up, and without an overflow.
    const uint64_t wanted = count_ / 100 * percent + (count_ % 100 * percent + 99) / 100;
    uint64_t seen = 0, found = 0;
    histogram_.for_each([&](uint32_t index, uint64_t count) {
      if (seen < wanted) found = Histogram::last_of(index);
      seen += count;
    });
    return std::min(found, max_);
  }

  /// Appends the encoding of docs/run-file.md.
  void encode(std::vector<uint8_t>& out) const {
    std::vector<uint64_t> words{count_,
                                total_,
                                static_cast<uint64_t>(squares_),
                                static_cast<uint64_t>(squares_ >> 64),
                                count_ == 0 ? 0 : min_,
                                max_,
                                0};
    histogram_.for_each([&](uint32_t index, uint64_t count) {
      words.push_back(index);
      words.push_back(count);
    });
    words[6] = (words.size() - 7) / 2;
    for (const uint64_t word : words) put(out, word);
  }

 private:
  uint64_t count_ = 0;
  uint64_t total_ = 0;
  unsigned __int128 squares_ = 0;
  uint64_t min_ = ~uint64_t{0};
  uint64_t max_ = 0;
  Histogram histogram_;
};

}  // namespace pig
