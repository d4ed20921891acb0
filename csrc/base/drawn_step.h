// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace pig {

/// Draws one step of each block of steps by chance. A program does other things every so many steps
/// (it logs, it validates, it reads a value), with which every k-th step would keep step.
///
/// The draws are not the program's, and the same on each rank: those that choose alike time the
/// same steps, and do not wait for each other's in turn.
class DrawnStep {
 public:
  void reset() { *this = DrawnStep(); }

  /// Whether the block is over, as it is at first.
  bool is_over() const { return at_ >= steps_; }
  void begin_block(uint32_t steps) {
    steps_ = steps;
    at_ = 0;
    drawn_ = static_cast<uint32_t>(next_random() % steps);
  }
  /// How many steps the block has.
  uint32_t steps() const { return steps_; }
  /// Whether the step at which the block is has been drawn.
  bool is_drawn() const { return at_ == drawn_ && !is_over(); }
  void advance() {
    if (!is_over()) ++at_;
  }
  void go_back() {
    if (at_ > 0) --at_;
  }

 private:
  /// splitmix64, by Sebastiano Vigna (prng.di.unimi.it).
  uint64_t next_random() {
    uint64_t z = random_ += kIncrement;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  static constexpr uint64_t kIncrement = 0x9E3779B97F4A7C15u;

  uint32_t steps_ = 0;
  uint32_t drawn_ = 0;
  uint32_t at_ = 0;
  uint64_t random_ = kIncrement;
};

}  // namespace pig
