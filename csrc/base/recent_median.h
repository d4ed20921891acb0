// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace pig {

/// The median of the last values, so that one that is out of all proportion does not count.
class RecentMedian {
 public:
  void add(uint64_t value) { values_[count_++ % values_.size()] = value; }
  uint64_t value() const {
    if (known_at_ == count_) return known_;
    auto sorted = values_;
    const auto end = sorted.begin() + static_cast<ptrdiff_t>(std::min(count_, sorted.size()));
    const auto middle = sorted.begin() + (end - sorted.begin()) / 2;
    std::nth_element(sorted.begin(), middle, end);
    known_at_ = count_;
    return known_ = *middle;
  }

 private:
  std::array<uint64_t, 31> values_{};
  size_t count_ = 0;
  // It is asked for more often than it changes.
  mutable size_t known_at_ = 0;
  mutable uint64_t known_ = 0;
};

}  // namespace pig
