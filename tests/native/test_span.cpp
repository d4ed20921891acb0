// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdint>

#include "check.h"
#include "hot/span.h"

namespace {

using pig::RawSpan;

struct Fields {
  uint64_t begin;
  uint64_t duration;
  uint64_t child;
  uint32_t step;
  uint32_t path;
  uint32_t depth;
  uint8_t flags;
};

constexpr Fields kLargest = {
    ~uint64_t{0}, (uint64_t{1} << 56) - 1, (uint64_t{1} << 56) - 1, 0xFFFFFFFF, 0xFFFFFF, 0xFFFF,
    0xFF};

void check_round_trip(const Fields& fields) {
  const RawSpan span = RawSpan::pack(fields.begin, fields.duration, fields.child, fields.step,
                                     fields.path, fields.depth, fields.flags);
  CHECK_EQ(span.begin, fields.begin);
  CHECK_EQ(span.duration(), fields.duration);
  CHECK_EQ(span.child(), fields.child);
  CHECK_EQ(span.step(), fields.step);
  CHECK_EQ(span.path(), fields.path);
  CHECK_EQ(span.depth(), fields.depth);
  CHECK_EQ(unsigned{span.flags()}, unsigned{fields.flags});
}

/// Every combination of fields that are 0, 1, or as large as they may be: none touches another.
void test_extremes() {
  constexpr int kCombinations = 3 * 3 * 3 * 3 * 3 * 3 * 3;
  for (int combination = 0; combination < kCombinations; ++combination) {
    int rest = combination;
    const auto pick = [&rest](auto largest) {
      const std::array<decltype(largest), 3> values = {0, 1, largest};
      const auto value = values[static_cast<size_t>(rest % 3)];
      rest /= 3;
      return value;
    };
    Fields fields{};
    fields.begin = pick(kLargest.begin);
    fields.duration = pick(kLargest.duration);
    fields.child = pick(kLargest.child);
    fields.step = pick(kLargest.step);
    fields.path = pick(kLargest.path);
    fields.depth = pick(kLargest.depth);
    fields.flags = pick(kLargest.flags);
    check_round_trip(fields);
  }
}

void test_scope() {
  const auto scope_of = [](uint32_t step, uint8_t flags) {
    return RawSpan::pack(0, 0, 0, step, 0, 1, flags).scope();
  };
  CHECK(scope_of(pig::kNoStep, 0) == pig::Scope::kOutside);
  CHECK(scope_of(pig::kNoStep, pig::kStepThread) == pig::Scope::kOutside);
  CHECK(scope_of(0, pig::kStepThread) == pig::Scope::kStep);
  CHECK(scope_of(0, 0) == pig::Scope::kOtherThreads);
  CHECK(scope_of(pig::kNoStep - 1, 0xFF & ~pig::kStepThread) == pig::Scope::kOtherThreads);
}

}  // namespace

int main() {
  test_extremes();
  test_scope();
}
