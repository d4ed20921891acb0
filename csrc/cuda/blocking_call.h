// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pig::cuda {

/// Stands around calls of the driver that may block. An enqueue blocks while its stream is full,
/// some thousand entries behind, and a call that needs the lock of the context blocks behind it. In
/// a Python process the GIL is given away meanwhile, as PyTorch does: a collective that has stalled
/// must leave the thread that could abort it able to run. Costs 30 to 50 ns.
class BlockingCall {
 public:
  /// How: `begin` gives what `end` gets back. Without, nothing is done.
  struct Hooks {
    void* (*begin)();
    void (*end)(void* state);
  };
  static inline Hooks hooks{};

  BlockingCall() : state_(hooks.begin != nullptr ? hooks.begin() : nullptr) {}
  ~BlockingCall() {
    if (state_ != nullptr) hooks.end(state_);
  }
  BlockingCall(const BlockingCall&) = delete;
  BlockingCall& operator=(const BlockingCall&) = delete;

 private:
  void* state_;
};

}  // namespace pig::cuda
