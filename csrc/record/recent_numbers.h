// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pig {

/// A set of the numbers that were added last. When there are too many, the one whose addition is
/// longest ago goes. For few numbers, of which the same are added again and again: it is searched
/// from the most recent one on.
class RecentNumbers {
 public:
  explicit RecentNumbers(size_t most) : most_(most) {}

  bool empty() const { return numbers_.empty(); }
  bool contains(uint64_t number) const {
    return std::find(numbers_.rbegin(), numbers_.rend(), number) != numbers_.rend();
  }
  auto begin() const { return numbers_.begin(); }  ///< the one whose addition is longest ago
  auto end() const { return numbers_.end(); }

  void add(uint64_t number) {
    const auto found = std::find(numbers_.rbegin(), numbers_.rend(), number);
    if (found != numbers_.rend()) {
      std::rotate(found.base() - 1, found.base(), numbers_.end());
    } else if (numbers_.size() < most_) {
      numbers_.push_back(number);
    } else {
      std::rotate(numbers_.begin(), numbers_.begin() + 1, numbers_.end());
      numbers_.back() = number;
    }
  }

  void clear() { numbers_.clear(); }

 private:
  size_t most_;
  std::vector<uint64_t> numbers_;  ///< the most recent one last
};

}  // namespace pig
