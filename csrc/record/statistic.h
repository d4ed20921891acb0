// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "log/items.h"

namespace pig {

/// Log-linear histogram of nanoseconds, 32 buckets per octave (docs/run-file.md): a bucket is at
/// most 1/32 of its value wide, and merging is exact integer addition. Only the octaves that occur
/// take memory: 256 bytes each, contiguous.
class Histogram {
 public:
  static constexpr uint32_t kPerOctave = 32;

  static constexpr uint32_t index_of(uint64_t value) {
    if (value < kPerOctave) return static_cast<uint32_t>(value);
    const auto exponent = static_cast<uint32_t>(63 - std::countl_zero(value));
    return (exponent - 4) * kPerOctave +
           (static_cast<uint32_t>(value >> (exponent - 5)) & (kPerOctave - 1));
  }

  /// The largest value that a bucket holds.
  static constexpr uint64_t last_of(uint32_t index) {
    if (index < kPerOctave) return index;
    const uint32_t shift = index / kPerOctave - 1;
    const uint64_t first = static_cast<uint64_t>(kPerOctave + index % kPerOctave) << shift;
    return first + ((uint64_t{1} << shift) - 1);
  }

  void add(uint64_t value) { ++at(index_of(value)); }

  void make_room(uint64_t value) { at(index_of(value)); }

  void merge(const Histogram& other) {
    other.for_each([this](uint32_t index, uint64_t count) { at(index) += count; });
  }

  /// Calls `function(index, count)` for the buckets that are not empty, ascending.
  template <typename Function>
  void for_each(Function&& function) const {
    for (uint32_t i = 0; i < octaves_ * kPerOctave; ++i)
      if (counts_[i] != 0) function(first_octave_ * kPerOctave + i, counts_[i]);
  }

 private:
  uint64_t& at(uint32_t index) {
    const uint32_t octave = index / kPerOctave;
    if (octave - first_octave_ >= octaves_) grow(octave);
    return counts_[index - first_octave_ * kPerOctave];
  }

  void grow(uint32_t octave) {
    const uint32_t first = octaves_ == 0 ? octave : std::min(first_octave_, octave);
    const uint32_t last = octaves_ == 0 ? octave : std::max(first_octave_ + octaves_ - 1, octave);
    auto counts = std::make_unique<uint64_t[]>((last - first + 1) * kPerOctave);
    if (octaves_ != 0)
      std::memcpy(&counts[(first_octave_ - first) * kPerOctave], counts_.get(),
                  octaves_ * kPerOctave * sizeof(uint64_t));
    counts_ = std::move(counts);
    first_octave_ = first;
    octaves_ = last - first + 1;
  }

  std::unique_ptr<uint64_t[]> counts_;
  uint32_t first_octave_ = 0;
  uint32_t octaves_ = 0;
};

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
  uint64_t total() const { return total_; }
  uint64_t min() const { return count_ == 0 ? 0 : min_; }
  uint64_t max() const { return max_; }
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
                                min(),
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
