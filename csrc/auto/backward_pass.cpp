// SPDX-License-Identifier: Apache-2.0
//
// Phase "backward": autograd's engine runs, for `backward()` and for `torch.autograd.grad`.
#include "auto/activities.h"

namespace pig {
namespace {

class BackwardPass final : public Activity {
  const Phase* phase_of(LoopSession& session, const ObservedCall&) override {
    session.is_in_backward = phase_ != nullptr;
    return phase_;
  }

  void announce(LoopSession& session, const ObservedCall&) override {
    session.detector().runs_backward();
  }

  void ended(LoopSession& session, const ObservedCall&, PyObject*) override {
    session.is_in_backward = false;
    const bool has_updated = session.has_updated_in_backward;
    session.has_updated_in_backward = false;
    session.detector().ends_backward(has_updated);
  }

  const Phase* const phase_ = phase_named("backward");
};

}  // namespace

CallObserver& backward_pass() {
  static auto* const observer = new BackwardPass;
  return *observer;
}

}  // namespace pig
