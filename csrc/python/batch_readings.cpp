// SPDX-License-Identifier: Apache-2.0
//
// What is read of each batch, one row for each number. Its name is followed by its unit, unless it
// counts what it names. A step has the sum over its batches, as the reading `step/NAME` of the run,
// which everything that shows or exports metrics shows and exports.
#include "python/batch_readings.h"

#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>

#include "hot/active_recording.h"
#include "record/parts.h"

namespace pig {
namespace {

struct BatchReading {
  const char* name;
  double (*of)(PyObject* batch);  ///< NaN: not known
  // The last steps of which it was known for a batch, and was not.
  std::atomic<uint64_t> known_in = 0;
  std::atomic<uint64_t> unknown_in = 0;
};

constinit std::array<BatchReading, 0> batch_readings{};

}  // namespace

void read_batch(PyObject* batch) {
  if (parts().is_scratch()) return;
  const uint64_t step = uint64_t{active_epoch.load(std::memory_order_relaxed)} << 32 |
                        static_cast<uint32_t>(open_step.load(std::memory_order_relaxed));
  for (BatchReading& reading : batch_readings) {
    const double value = reading.of(batch);
    const bool is_known = !std::isnan(value);
    // Where it is known of no batch, as in most programs, this costs no lock.
    if (is_known || reading.known_in == step)
      parts().metrics.add_to_step(reading.name, reading.unknown_in == step ? NAN : value);
    (is_known ? reading.known_in : reading.unknown_in).store(step, std::memory_order_relaxed);
  }
}

}  // namespace pig
