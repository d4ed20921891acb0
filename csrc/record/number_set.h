// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pig {

/// A set of numbers that is filled, asked and emptied once per step. It may hold thousands: adding
/// one appends it, and only asking sorts them. Once it has held as many, it allocates no more.
/// Further numbers are left out when it is full.
class NumberSet {
 public:
  explicit NumberSet(size_t most) : most_(most) {}

  void add(uint64_t number) {
    if (numbers_.size() == numbers_.capacity()) make_room();
    if (numbers_.size() < most_) numbers_.push_back(number);
  }

  size_t size() {
    sort();
    return numbers_.size();
  }

  bool contains(uint64_t number) {
    sort();
    return std::binary_search(numbers_.begin(), numbers_.end(), number);
  }

  void clear() {
    numbers_.clear();
    sorted_ = 0;
  }

 private:
  /// Without what is there twice. At least half of the room is free afterwards, so that this is
  /// rare, unless the set is full.
  void make_room() {
    sort();
    if (numbers_.size() >= numbers_.capacity() / 2)
      numbers_.reserve(std::min(std::max<size_t>(2 * numbers_.capacity(), 8), most_));
  }

  void sort() {
    if (sorted_ == numbers_.size()) return;
    std::sort(numbers_.begin(), numbers_.end());
    numbers_.erase(std::unique(numbers_.begin(), numbers_.end()), numbers_.end());
    sorted_ = numbers_.size();
  }

  size_t most_;
  std::vector<uint64_t> numbers_;
  size_t sorted_ = 0;  ///< so many are in order and there once: all or an earlier part
};

}  // namespace pig
