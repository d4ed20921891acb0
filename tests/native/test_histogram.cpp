// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "record/statistic.h"

namespace {

using pig::Histogram;
using pig::Statistic;

/// The definition of docs/run-file.md, without shortcuts.
uint32_t reference_index(uint64_t value) {
  if (value < 32) return static_cast<uint32_t>(value);
  uint32_t exponent = 0;
  while (exponent < 63 && value >> (exponent + 1) != 0) ++exponent;
  return (exponent - 4) * 32 + static_cast<uint32_t>(value >> (exponent - 5) & 31);
}

/// The smallest value of a bucket.
uint64_t lower_bound(uint32_t index) {
  if (index < 32) return index;
  const uint32_t octave = index / 32;  // 1 holds 32 to 63
  return uint64_t{32 + index % 32} << (octave - 1);
}

constexpr uint32_t kBuckets = 1920;  // the last one ends at 2^64

/// 0, 1, and the three values around every power of two, around which buckets change their width.
std::vector<uint64_t> edges() {
  std::vector<uint64_t> values = {0, 1, ~uint64_t{0}};
  for (int bit = 1; bit < 64; ++bit)
    for (const uint64_t offset : {~uint64_t{0}, uint64_t{0}, uint64_t{1}})
      values.push_back((uint64_t{1} << bit) + offset);
  return values;
}

/// As many small values as large ones.
std::vector<uint64_t> random_values(size_t count) {
  std::mt19937_64 random(1);
  std::vector<uint64_t> values(count);
  for (uint64_t& value : values) value = random() >> random() % 64;
  return values;
}

void test_index_is_the_documented_one() {
  for (const uint64_t value : edges()) CHECK_EQ(Histogram::index_of(value), reference_index(value));
  for (const uint64_t value : random_values(1'000'000))
    CHECK_EQ(Histogram::index_of(value), reference_index(value));
}

void test_buckets_have_no_gap_and_are_narrow() {
  for (uint32_t index = 0; index < kBuckets; ++index) {
    const uint64_t first = lower_bound(index);
    const uint64_t last = index + 1 < kBuckets ? lower_bound(index + 1) - 1 : ~uint64_t{0};
    CHECK_EQ(Histogram::index_of(first), index);
    CHECK_EQ(Histogram::index_of(last), index);
    CHECK_EQ(Histogram::last_of(index), last);
    CHECK((last - first) <= first / 32);
  }
  CHECK_EQ(Histogram::index_of(~uint64_t{0}), kBuckets - 1);
}

std::vector<uint64_t> encoded(const Statistic& statistic) {
  std::vector<uint8_t> bytes = {0xAB};  // what is there already stays
  statistic.encode(bytes);
  CHECK_EQ(unsigned{bytes[0]}, 0xABu);
  CHECK_EQ((bytes.size() - 1) % 8, 0u);
  std::vector<uint64_t> words((bytes.size() - 1) / 8);
  std::memcpy(words.data(), &bytes[1], bytes.size() - 1);
  return words;
}

void test_encoding() {
  Statistic statistic;
  CHECK(encoded(statistic) == std::vector<uint64_t>(7, 0));

  // 2^40 squared is 2^80: the high word of the sum of squares is used.
  const uint64_t large = uint64_t{1} << 40;
  for (const uint64_t value : {uint64_t{5}, large, uint64_t{5}, uint64_t{33}}) statistic.add(value);
  const std::vector<uint64_t> expected = {
      4, 43 + large, 2 * 25 + 33 * 33, 1 << 16, 5, large, 3, 5, 2, 33, 1, (40 - 4) * 32, 1};
  CHECK(encoded(statistic) == expected);
}

void test_merging_is_adding_all() {
  const std::vector<uint64_t> values = random_values(5000);
  // Split at 0 too: an empty statistic merges into and from.
  for (const size_t split : {size_t{0}, size_t{1}, size_t{2500}, values.size()}) {
    Statistic all, first, second;
    for (size_t i = 0; i < values.size(); ++i) {
      all.add(values[i]);
      (i < split ? first : second).add(values[i]);
    }
    first.merge(second);
    CHECK(encoded(first) == encoded(all));
  }
}

void test_a_quantile_is_an_upper_bound() {
  Statistic statistic;
  CHECK_EQ(statistic.quantile(99), 0u);
  for (uint64_t value = 1; value <= 1000; ++value) statistic.add(value * 1000);
  const uint64_t p99 = statistic.quantile(99);
  CHECK(p99 >= 990'000 && p99 <= 990'000 * 33 / 32);
  CHECK_EQ(statistic.quantile(100), 1'000'000u);
}

}  // namespace

int main() {
  test_index_is_the_documented_one();
  test_buckets_have_no_gap_and_are_narrow();
  test_encoding();
  test_merging_is_adding_all();
  test_a_quantile_is_an_upper_bound();
}
