// SPDX-License-Identifier: Apache-2.0
//
// Ranks and sums by each instruction set that this machine has, against the arithmetic that the
// kernel uses, and that arithmetic against plain definitions.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "metrics/kernel_launch.h"
#include "metrics/row_scan.h"

using namespace pig::metrics;

namespace {

/// Of the instruction set that is being tested.
const RowFunctions* functions = nullptr;

constexpr Format kFormats[] = {kFloat64, kFloat32, kFloat16, kBfloat16};

size_t bytes_of(Format format) { return format == kFloat64 ? 8 : format == kFloat32 ? 4 : 2; }

/// All of a row is asked for.
LogitRows row_of(const void* logits, I64 classes, const I64* target, const double* class_weight) {
  double class_weight_sum = 0;
  for (I64 c = 0; c < classes; ++c) class_weight_sum += class_weight[c];
  return {logits, classes, classes, 1, target, true, true, class_weight, class_weight_sum};
}

/// What a row's functions find, which has to be the same.
RowScan scan_of_row(const void* row, Format format, I64 classes, I64 target) {
  const std::vector<double> weights(static_cast<size_t>(classes), 0.5);
  const LogitRows rows = row_of(row, classes, &target, weights.data());
  RowScan rank, both;
  functions[format - kFloat64].rank(rows, &rank);
  functions[format - kFloat64].rank_and_sums(rows, &both);
  CHECK_EQ(rank.rank, both.rank);
  CHECK_EQ(rank.finite, both.finite);
  CHECK_EQ(rank.prediction, both.prediction);
  return both;
}

/// The definition, with the kernel's functions.
RowScan reference(const void* data, Format format, I64 classes, I64 target) {
  const double own = load_real(data, format, target);
  RowScan result{};
  result.finite = true;
  for (I64 c = 0; c < classes; ++c) {
    const double x = load_real(data, format, c);
    result.finite = result.finite && is_finite(x);
    if (std::isnan(own)) {
      result.rank += std::isnan(x) && c < target;
    } else {
      // Unordered compares: true for a NaN.
      result.rank += c != target && (c < target ? !(x < own) : !(x <= own));
    }
  }
  return result;
}

/// Equal up to `tolerance` of the numbers that were added; NaN is equal to NaN.
void check_near(double got, long double exact, double tolerance, long double added) {
  const auto wanted = static_cast<double>(exact);  // infinite where a double would be
  if (std::isnan(wanted)) {
    CHECK(std::isnan(got));
  } else if (std::isinf(wanted)) {
    CHECK_EQ(got, wanted);
  } else {
    CHECK(std::fabs(got - wanted) <= tolerance * added + 1e-300);
  }
}

/// Against their definitions, where every class has the weight 0.5. These are summed in long
/// double: sums in double would differ by as much as those that are checked.
void check_sums(const RowSums& got, const void* data, Format format, I64 classes, I64 target) {
  double max = -std::numeric_limits<double>::infinity();
  for (I64 c = 0; c < classes; ++c) {
    const double x = load_real(data, format, c);
    max = std::isnan(x) || x > max ? x : max;
  }
  long double exp_sum = 0, shift_sum = 0, weighted_sum = 0, added = 0;
  for (I64 c = 0; c < classes; ++c) {
    const long double shift = static_cast<long double>(load_real(data, format, c)) - max;
    exp_sum += std::exp(shift);
    shift_sum += std::isinf(shift) ? 0 : std::exp(shift) * shift;
    weighted_sum += 0.5L * shift;
    added += std::fabs(0.5 * load_real(data, format, c)) + std::fabs(0.5 * max);
  }
  const double tolerance = format == kFloat64 ? 1e-14 : 3e-7;
  check_near(got.exp_sum, exp_sum, tolerance, exp_sum);
  if (std::isnan(exp_sum)) return;  // then of the others is nothing to be said
  CHECK_EQ(got.max, max);
  CHECK_EQ(got.target, load_real(data, format, target));
  check_near(got.shift_sum, shift_sum, tolerance, exp_sum - shift_sum);
  if (std::isfinite(static_cast<double>(added)))
    check_near(got.weighted_sum, weighted_sum, 1e-14, added);
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
          const RowScan wanted = reference(row.data(), format, classes, target);
          const RowScan got = scan_of_row(row.data(), format, classes, target);
          CHECK_EQ(got.rank, wanted.rank);
          CHECK_EQ(got.finite, wanted.finite);
          CHECK_EQ(reference(row.data(), format, classes, got.prediction).rank, 0);
          check_sums(got.sums, row.data(), format, classes, target);
        }
      }
}

/// More logits of one value than a lane of 16 bits can count.
void test_long_rows_of_ties() {
  for (const Format format : {kFloat16, kBfloat16, kFloat32})
    for (const I64 classes : {I64{262'144}, I64{1'100'003}}) {
      const std::vector<char> row(static_cast<size_t>(classes) * bytes_of(format), 0x3C);
      for (const I64 target : {I64{0}, classes / 2, classes - 1}) {
        const RowScan got = scan_of_row(row.data(), format, classes, target);
        CHECK_EQ(got.rank, target);
        CHECK(got.finite);
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
  const std::vector<const RowFunctions*> sets = row_functions_by_instructions();
  for (const RowFunctions* const set : sets) {
    functions = set;
    test_ranks_of_rows();
    test_long_rows_of_ties();
  }
  for (const Format format : kFormats)
    CHECK(&row_functions(format) == &sets.back()[format - kFloat64]);
  test_halves();
  test_shape_of_a_launch();
}
