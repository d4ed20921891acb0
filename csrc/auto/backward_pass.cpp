// SPDX-License-Identifier: Apache-2.0
//
// Phase "backward": autograd's engine runs, for `backward()` and for `torch.autograd.grad`.
#include <utility>

#include "auto/activities.h"

namespace pig {
namespace {

class BackwardPass final : public Activity {
  const Phase* phase_of(LoopSession&, const ObservedCall&) override { return phase_; }

  void announce(LoopSession& session, const ObservedCall&) override {
    session.detector().runs_backward();
  }

  void ended(LoopSession& session, const ObservedCall&, PyObject*) override {
    session.look_at_eval_calls();
    StepDetector& detector = session.detector();
    // One of another thread may be a part of the loop's own, whose updates it must not take.
    if (!detector.counts_here()) return;
    detector.ends_backward(std::exchange(session.has_updated_in_backward, false));
  }

  const Phase* const phase_ = phase_named("backward");
};

}  // namespace

CallObserver& backward_pass() { return the<BackwardPass>(); }

}  // namespace pig
