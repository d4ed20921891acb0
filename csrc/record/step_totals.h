// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "record/statistic.h"

namespace pig {

/// Totals over all steps of the run.
struct StepTotals {
  uint64_t count = 0;
  uint64_t complete = 0;
  uint64_t items = 0;
  uint64_t sampled = 0;     ///< steps whose number of samples is known
  uint64_t sampled_ns = 0;  ///< and their time
  double samples = 0;
  Statistic duration;

  void add(uint64_t duration_ns, double step_samples, uint32_t step_items, bool step_complete) {
    ++count;
    complete += step_complete ? 1 : 0;
    items += step_items;
    if (!std::isnan(step_samples)) {
      ++sampled;
      sampled_ns += duration_ns;
      samples += step_samples;
    }
    duration.add(duration_ns);
  }

  void encode(std::vector<uint8_t>& out) const {
    const uint64_t words[5] = {count, complete, items, sampled, sampled_ns};
    const auto* bytes = reinterpret_cast<const uint8_t*>(words);
    out.insert(out.end(), bytes, bytes + sizeof words);
    const auto* tail = reinterpret_cast<const uint8_t*>(&samples);
    out.insert(out.end(), tail, tail + sizeof samples);
    duration.encode(out);
  }
};

}  // namespace pig
