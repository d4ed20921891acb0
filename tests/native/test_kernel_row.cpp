// SPDX-License-Identifier: Apache-2.0
//
// The loss that the kernel computes from the logits, by every format and layout of threads, against
// the same in double precision, row by row.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "check.h"
#include "emulated_cuda.h"
#include "metrics/metric_kernel.cu"

using namespace pig::metrics;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Rows of logits as a kernel gets them, and what they are.
struct Logits2d {
  Format format;
  I64 rows, classes;
  std::vector<double> values;  ///< rounded to the format
  std::vector<unsigned char> bytes;

  Logits2d(Format of, I64 count, I64 width, const std::vector<double>& wanted)
      : format(of), rows(count), classes(width), values(wanted) {
    const size_t size = of == kFloat64 ? 8 : of == kFloat32 ? 4 : 2;
    bytes.resize(values.size() * size + 16);
    for (size_t i = 0; i < values.size(); ++i) {
      unsigned char* const at = bytes.data() + i * size;
      const auto narrow = static_cast<float>(values[i]);
      if (of == kFloat64) {
        std::memcpy(at, &values[i], 8);
      } else if (of == kFloat32) {
        std::memcpy(at, &narrow, 4);
        values[i] = narrow;
      } else {
        const unsigned short bits = of == kBfloat16 ? to_bfloat16(narrow) : to_half(narrow);
        std::memcpy(at, &bits, 2);
        values[i] = of == kBfloat16 ? bfloat16_to_float(bits) : half_to_float(bits);
      }
    }
  }

  // Towards zero is as good as any.
  static unsigned short to_bfloat16(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, 4);
    return static_cast<unsigned short>(bits >> 16);
  }
  static unsigned short to_half(float x) {
    unsigned short best = 0x7C00;  // infinity
    const float magnitude = std::fabs(x);
    if (magnitude <= 65504.0f) {
      unsigned low = 0, high = 0x7BFF;
      while (low < high) {
        const unsigned middle = (low + high + 1) / 2;
        if (half_to_float(static_cast<unsigned short>(middle)) <= magnitude)
          low = middle;
        else
          high = middle - 1;
      }
      best = static_cast<unsigned short>(low);
    }
    return static_cast<unsigned short>(best | (std::signbit(x) ? 0x8000 : 0));
  }
};

struct Scores {
  double loss, entropy;
};

/// In long double, from the greatest logit down.
Scores expected(const double* row, I64 classes, I64 target) {
  const double max = *std::max_element(row, row + classes);
  long double others = 0, shifts = 0;
  for (I64 c = 0; c < classes; ++c) {
    const long double shift = static_cast<long double>(row[c]) - max;
    if (c != target) others += std::exp(shift);
    if (row[c] != -kInfinity) shifts += std::exp(shift) * shift;
  }
  const long double own = std::exp(static_cast<long double>(row[target]) - max);
  const long double sum = others + own;
  // Where the target is nearly all, by what the others are.
  const long double loss = own == 1 ? std::log1p(others) : std::log(sum) - (row[target] - max);
  const long double log_sum = own == 1 ? std::log1p(others) : std::log(sum);
  return {static_cast<double>(loss), static_cast<double>(log_sum - shifts / sum)};
}

using Kernel = void (*)(UpdateParameters);

Kernel kernel_of(Format format, RowsBy by) {
#define KERNELS(name)                                                                 \
  {                                                                                   \
    pig_metric_cross_entropy_##name##_thread, pig_metric_cross_entropy_##name##_warp, \
        pig_metric_cross_entropy_##name##_block                                       \
  }
  static const Kernel kernels[4][3] = {KERNELS(float64), KERNELS(float32), KERNELS(float16),
                                       KERNELS(bfloat16)};
#undef KERNELS
  return kernels[format - kFloat64][static_cast<int>(by)];
}

/// The state after one row.
std::unique_ptr<State> state_of_row(const Logits2d& logits, I64 row, I64 target, RowsBy by) {
  auto state = std::make_unique<State>();
  static auto scratch = std::make_unique<Scratch>();
  static auto snapshot = std::make_unique<Snapshot>();
  *scratch = {};
  UpdateParameters p{};
  p.launch = {state.get(), scratch.get(), snapshot.get(), 1, 0, 0, 0};
  Batch& batch = p.batch;
  const I64 size = logits.format == kFloat64 ? 8 : logits.format == kFloat32 ? 4 : 2;
  batch.logits = logits.bytes.data() + row * logits.classes * size;
  batch.target = &target;
  batch.logits_format = logits.format;
  batch.target_format = kInt64;
  batch.loss_kind = kCrossEntropy;
  batch.dims = 1;
  batch.rows = 1;
  batch.classes = logits.classes;
  batch.class_stride = 1;
  batch.sizes[0] = 1;
  batch.ignore_index = -100;
  batch.class_weight_sum = static_cast<double>(logits.classes);
  emulated::Machine machine;
  machine.launch(1, [p, by] { kernel_of(p.batch.logits_format, by)(p); });
  machine.run();
  return state;
}

struct Worst {
  double loss = 0;     ///< relative
  double entropy = 0;  ///< absolute
};

void check_rows(const char* what, const Logits2d& logits, const std::vector<I64>& targets,
                double loss_limit, double entropy_limit) {
  Worst worst;
  for (I64 row = 0; row < logits.rows; ++row)
    for (const RowsBy by : {RowsBy::kThread, RowsBy::kWarp, RowsBy::kBlock}) {
      const I64 target = targets[static_cast<size_t>(row)];
      const Scores wanted = expected(&logits.values[row * logits.classes], logits.classes, target);
      const auto state = state_of_row(logits, row, target, by);
      if (!std::isfinite(wanted.loss)) {
        CHECK_EQ(state->nonfinite_losses, 1u);
        CHECK_EQ(state->loss_weight, 0.0);
      } else {
        CHECK_EQ(state->loss_weight, 1.0);
        CHECK_EQ(state->nll_sum, state->loss_sum);
        // The logarithm of a sum near 1 is as exact as that sum.
        const double error = std::max(std::fabs(state->loss_sum - wanted.loss) - 0x1p-51, 0.0);
        if (error != 0) worst.loss = std::max(worst.loss, error / wanted.loss);
      }
      CHECK_EQ(state->entropy_weight, 1.0);
      worst.entropy = std::max(worst.entropy, std::fabs(state->entropy_sum - wanted.entropy));
    }
  std::printf("%s: loss by 2^%.1f of it, entropy by 2^%.1f\n", what, std::log2(worst.loss),
              std::log2(worst.entropy));
  std::fflush(stdout);
  CHECK(worst.loss <= loss_limit);
  CHECK(worst.entropy <= entropy_limit);
}

std::vector<double> normal(size_t count, double scale, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> distribution(0, scale);
  std::vector<double> values(count);
  for (double& value : values) value = distribution(random);
  return values;
}

constexpr Format kFormats[] = {kFloat64, kFloat32, kFloat16, kBfloat16};

void test_rows_of_all_sizes() {
  for (const Format format : kFormats)
    for (const I64 classes : {1, 2, 3, 7, 33, 257, 1000, 5003}) {
      constexpr I64 kRows = 6;
      std::vector<double> values = normal(static_cast<size_t>(kRows * classes), 3, 1);
      std::vector<I64> targets;
      for (I64 row = 0; row < kRows; ++row) targets.push_back(row * 7919 % classes);
      values[static_cast<size_t>(targets[0])] = 30;                            // nearly certain
      values[static_cast<size_t>(classes + (targets[1] + 1) % classes)] = 60;  // and wrong
      for (I64 c = 0; c < classes; ++c) values[static_cast<size_t>(2 * classes + c)] -= 500;
      for (I64 c = 0; c < classes; ++c)
        if (c % 3 != 0 && c != targets[3])
          values[static_cast<size_t>(3 * classes + c)] = -kInfinity;
      for (I64 c = 0; c < classes; ++c)
        if (c != targets[4]) values[static_cast<size_t>(4 * classes + c)] = -kInfinity;
      const Logits2d logits(format, kRows, classes, values);
      const double limit = format == kFloat64 ? 0x1p-48 : 0x1p-20;
      check_rows("rows", logits, targets, limit, 16 * limit);
    }
}

void test_a_vocabulary() {
  constexpr I64 kClasses = 128'256;
  const Logits2d logits(kFloat32, 1, kClasses, normal(kClasses, 2, 2));
  // One thread adds 32,000 numbers, and rounds each time.
  check_rows("128,256 classes", logits, {77}, 0x1p-24, 0x1p-15);
}

void test_extremes() {
  // The greatest comes last, far above; the target is masked, or infinite, or the lowest number.
  const double lowest = -std::numeric_limits<float>::max();
  for (const Format format : {kFloat32, kFloat64}) {
    const Logits2d logits(format, 3, 6,
                          {0, -1, 2, 3, 1e30, 1e30, lowest, 1, 2, 3, 2, 1, lowest, lowest, lowest,
                           lowest, lowest, lowest});
    check_rows("extremes", logits, {4, 2, 3}, 0x1p-20, 0x1p-18);
    for (const RowsBy by : {RowsBy::kThread, RowsBy::kWarp, RowsBy::kBlock}) {
      const Logits2d bad(format, 3, 4,
                         {-kInfinity, 1, 2, 3, kInfinity, 1, 2, 3, std::nan(""), 1, 2, 3});
      for (I64 row = 0; row < 3; ++row) {
        const auto state = state_of_row(bad, row, 0, by);
        CHECK_EQ(state->nonfinite_losses, 1u);
        CHECK_EQ(state->nonfinite_rows, 1u);
        CHECK_EQ(state->nll_weight, 0.0);
        // A mask at the target hides the loss, but the others are what they are.
        CHECK_EQ(state->entropy_weight, row == 0 ? 1.0 : 0.0);
      }
      const Logits2d nothing(format, 1, 3, {-kInfinity, -kInfinity, -kInfinity});
      CHECK_EQ(state_of_row(nothing, 0, 1, by)->entropy_weight, 0.0);
    }
  }
}

}  // namespace

int main() {
  test_rows_of_all_sizes();
  test_a_vocabulary();
  test_extremes();
}
