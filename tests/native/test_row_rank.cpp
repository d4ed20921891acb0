// SPDX-License-Identifier: Apache-2.0
//
// Ranks by the instruction set that this machine has, against the arithmetic that the kernel
// uses, and that arithmetic against plain definitions.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "metrics/kernel_launch.h"
#include "metrics/row_rank.h"

using namespace pig::metrics;

namespace {

constexpr Format kFormats[] = {kFloat64, kFloat32, kFloat16, kBfloat16};

size_t bytes_of(Format format) { return format == kFloat64 ? 8 : format == kFloat32 ? 4 : 2; }

/// Of one row of contiguous logits.
RowRank rank_of_row(const void* row, Format format, I64 classes, I64 target) {
  RowRank rank;
  rank_functions(format).rank(row, classes, 1, classes, 1, &target, &rank);
  return rank;
}

/// The definition, with the kernel's functions.
RowRank reference(const void* data, Format format, I64 classes, I64 stride, I64 target) {
  const double own = load_real(data, format, target * stride);
  RowRank result{0, true};
  for (I64 c = 0; c < classes; ++c) {
    const double x = load_real(data, format, c * stride);
    result.finite = result.finite && is_finite(x);
    if (std::isnan(own)) {
      result.rank += std::isnan(x) && c < target;
    } else {
      result.rank += c != target && outranks(x, own, c < target);
    }
  }
  return result;
}

/// Bits of few different values, NaNs of both signs and infinities among them if `special`.
std::vector<char> random_row(std::mt19937& random, Format format, size_t count, bool special) {
  const size_t bytes = bytes_of(format);
  const int exponent_bits = format == kFloat64 ? 11 : format == kFloat16 ? 5 : 8;
  const int mantissa_bits = static_cast<int>(8 * bytes) - 1 - exponent_bits;
  const uint64_t infinity = ((uint64_t{1} << exponent_bits) - 1) << mantissa_bits;
  const uint64_t one = ((uint64_t{1} << (exponent_bits - 1)) - 1) << mantissa_bits;
  const uint64_t sign = uint64_t{1} << (8 * bytes - 1);
  const uint64_t finite[] = {0, 1, one, one + 1, infinity - 1, one - 3};
  const uint64_t all[] = {0, 1, one, one + 1, infinity - 1, infinity, infinity + 1, infinity + 5};
  std::vector<char> row(count * bytes);
  for (size_t i = 0; i < count; ++i) {
    uint64_t bits = special ? all[random() % 8] : finite[random() % 6];
    if (random() % 2 != 0) bits |= sign;
    std::memcpy(&row[i * bytes], &bits, bytes);
  }
  return row;
}

void test_ranks_of_rows() {
  std::mt19937 random(1);
  for (const Format format : kFormats)
    for (I64 classes = 1; classes <= 300; classes += classes < 140 ? 1 : 37)
      for (int special = 0; special < 2; ++special) {
        const auto row = random_row(random, format, static_cast<size_t>(classes), special != 0);
        for (int i = 0; i < 6; ++i) {
          const I64 target = i == 0   ? 0
                             : i == 1 ? classes - 1
                                      : static_cast<I64>(random() % static_cast<uint64_t>(classes));
          const RowRank wanted = reference(row.data(), format, classes, 1, target);
          const RowRank got = rank_of_row(row.data(), format, classes, target);
          CHECK_EQ(got.rank, wanted.rank);
          CHECK_EQ(got.finite, wanted.finite);
          const I64 first = rank_functions(format).argmax(row.data(), classes, 1);
          CHECK_EQ(reference(row.data(), format, classes, 1, first).rank, 0);
        }
      }
}

/// More logits of one value than a lane of 16 bits can count.
void test_long_rows_of_ties() {
  for (const Format format : {kFloat16, kBfloat16, kFloat32})
    for (const I64 classes : {I64{262'144}, I64{1'100'003}}) {
      const std::vector<char> row(static_cast<size_t>(classes) * bytes_of(format), 0x3C);
      for (const I64 target : {I64{0}, classes / 2, classes - 1}) {
        const RowRank got = rank_of_row(row.data(), format, classes, target);
        CHECK_EQ(got.rank, target);
        CHECK(got.finite);
      }
    }
}

void test_ranks_of_columns() {
  std::mt19937 random(2);
  for (const Format format : kFormats)
    for (const I64 classes : {I64{1}, I64{2}, I64{9}, I64{70}, I64{40'000}})
      for (const I64 row_stride : {I64{1}, I64{3}}) {
        const int rows = classes > 1000 ? 3 : 1 + static_cast<int>(random() % kRowsAtOnce);
        const I64 class_stride = rows * row_stride + 1;
        const auto logits =
            random_row(random, format, static_cast<size_t>(classes * class_stride), true);
        std::vector<I64> targets(static_cast<size_t>(rows));
        for (I64& target : targets)
          target = static_cast<I64>(random() % static_cast<uint64_t>(classes));
        std::vector<RowRank> got(targets.size());
        rank_functions(format).rank(logits.data(), classes, class_stride, row_stride, rows,
                                    targets.data(), got.data());
        for (int row = 0; row < rows; ++row) {
          const auto at = static_cast<size_t>(row);
          const RowRank wanted =
              reference(logits.data() + static_cast<size_t>(row * row_stride) * bytes_of(format),
                        format, classes, class_stride, targets[at]);
          CHECK_EQ(got[at].rank, wanted.rank);
          CHECK_EQ(got[at].finite, wanted.finite);
        }
      }
}

/// Every half, by its definition.
void test_halves() {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const float got = half_to_float(static_cast<unsigned short>(bits));
    const uint32_t exponent = bits >> 10 & 0x1F, mantissa = bits & 0x3FF;
    if (exponent == 0x1F && mantissa != 0) {
      CHECK(std::isnan(got));
      continue;
    }
    const float size = exponent == 0x1F ? std::numeric_limits<float>::infinity()
                       : exponent == 0  ? std::ldexp(static_cast<float>(mantissa), -24)
                                        : std::ldexp(static_cast<float>(mantissa + 0x400),
                                                     static_cast<int>(exponent) - 25);
    CHECK_EQ(got, (bits & 0x8000) != 0 ? -size : size);
    CHECK_EQ(std::signbit(got), (bits & 0x8000) != 0);
  }
}

void test_shape_of_a_launch() {
  Batch batch{};
  batch.class_stride = 1;
  batch.classes = 32'000;
  batch.rows = 4096;
  CHECK(shape_of(batch, 132).rows_by == RowsBy::kBlock);
  CHECK_EQ(shape_of(batch, 132).blocks, 528u);
  batch.rows = 3;
  CHECK_EQ(shape_of(batch, 132).blocks, 3u);
  batch.rows = 0;
  CHECK_EQ(shape_of(batch, 132).blocks, 1u);
  batch.classes = 1000;
  batch.rows = 256;
  CHECK(shape_of(batch, 132).rows_by == RowsBy::kWarp);
  CHECK_EQ(shape_of(batch, 132).blocks, 32u);
  batch.class_stride = 49;
  batch.rows = 1'000'000;
  CHECK(shape_of(batch, 132).rows_by == RowsBy::kThread);
  CHECK_EQ(shape_of(batch, 100'000).blocks, static_cast<unsigned>(kMaxBlocks));
  CHECK_EQ(kernel_name(false, kBfloat16, RowsBy::kBlock),
           std::string("pig_metric_update_bfloat16_block"));
}

}  // namespace

int main() {
  test_ranks_of_rows();
  test_long_rows_of_ties();
  test_ranks_of_columns();
  test_halves();
  test_shape_of_a_launch();
}
