// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "cuda/driver.h"

namespace sim {

// What the driver has besides the functions of our table. The project must call none of them; those
// that block are here to be counted.
#define SIM_OTHER_FUNCTIONS(F)                     \
  F(Init, (unsigned flags))                        \
  F(CtxSynchronize, (void))                        \
  F(StreamSynchronize, (pig::cuda::Stream stream)) \
  F(EventSynchronize, (pig::cuda::Event event))

#define SIM_FUNCTIONS(F)       \
  PIG_CUDA_TIMING_FUNCTIONS(F) \
  PIG_CUDA_LATER_FUNCTIONS(F)  \
  PIG_CUDA_KERNEL_FUNCTIONS(F) \
  PIG_CUDA_GRAPH_FUNCTIONS(F)  \
  SIM_OTHER_FUNCTIONS(F)

#define SIM_DECLARE(name, parameters) k##name,
enum class Function : int { SIM_FUNCTIONS(SIM_DECLARE) kCount };
#undef SIM_DECLARE

#define SIM_NAME(name, parameters) "cu" #name,
constexpr std::array<const char*, static_cast<size_t>(Function::kCount)> kFunctionNames = {
    SIM_FUNCTIONS(SIM_NAME)};
#undef SIM_NAME

/// -1 when there is none of that name.
inline int function_index(const char* name) {
  for (size_t i = 0; i < kFunctionNames.size(); ++i)
    if (std::strcmp(kFunctionNames[i], name) == 0) return static_cast<int>(i);
  return -1;
}

struct Call {
  Function function;
  int result;
  uint64_t thread;  ///< the kernel's id
  int64_t host_ns;  ///< when it returned
  std::array<uint64_t, 4> arguments;
};

/// What is known of the calls made, and what the test has ordered for those to come.
class Calls {
 public:
  void reset() { *this = Calls(); }

  /// The next `after` calls still work, then `count` fail; a negative count is forever. Index -1
  /// is every function.
  void fail(int function, int result, uint64_t after, int64_t count) {
    failures_.push_back({function, result, after, count});
  }
  void stop_failing() { failures_.clear(); }

  void set_cost(int function, int64_t ns) {
    if (function >= 0) {
      cost_ns_[static_cast<size_t>(function)] = ns;
    } else {
      cost_ns_.fill(ns);
    }
  }
  int64_t cost_ns(Function function) const { return cost_ns_[static_cast<size_t>(function)]; }

  /// The result that the test has ordered for this call, or 0.
  int ordered_failure(Function function) {
    for (Failure& failure : failures_) {
      if (failure.function >= 0 && failure.function != static_cast<int>(function)) continue;
      if (failure.after > 0) {
        --failure.after;
      } else if (failure.count != 0) {
        if (failure.count > 0) --failure.count;
        return failure.result;
      }
    }
    return 0;
  }

  void add(const Call& call) {
    ++counts_[static_cast<size_t>(call.function)][call.result];
    if (log_.size() < kLogCapacity) {
      log_.push_back(call);
    } else {
      log_[logged_ % kLogCapacity] = call;
    }
    ++logged_;
  }

  uint64_t logged() const { return logged_; }
  uint64_t oldest() const { return logged_ - log_.size(); }
  const Call& at(uint64_t i) const { return log_[i % kLogCapacity]; }

  const std::map<int, uint64_t>& counts(int function) const {
    return counts_[static_cast<size_t>(function)];
  }

 private:
  struct Failure {
    int function;
    int result;
    uint64_t after;
    int64_t count;
  };
  std::vector<Failure> failures_;
  std::array<int64_t, kFunctionNames.size()> cost_ns_{};
  std::array<std::map<int, uint64_t>, kFunctionNames.size()> counts_;
  static constexpr size_t kLogCapacity = 1u << 20;
  uint64_t logged_ = 0;
  std::vector<Call> log_;
};

}  // namespace sim
