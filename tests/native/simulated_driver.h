// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>

#include "simulated_calls.h"
#include "simulated_clock.h"
#include "simulated_machine.h"

namespace sim {

/// A kernel's stand-in: runs on the launching thread, with the kernel's parameters.
using LaunchCallback = void (*)(void** parameters);

/// The one instance in the process. `mutex` guards all but the clock.
struct SimulatedDriver {
  std::mutex mutex;
  HostClock host;
  Machine machine{host};
  Calls calls;
  std::map<std::string, LaunchCallback> callbacks;
  uint64_t epoch = 1;  ///< grows with each reset

  static SimulatedDriver& instance();
  /// The calling thread's state. After a reset it is as that of a new thread.
  Thread& thread();
};

}  // namespace sim
