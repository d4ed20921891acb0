// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "auto/loop_session.h"
#include "hooks/call_observer.h"

namespace pig {

/// Functions of torch whose calls are activities: each is a phase, unless it is part of another.
///
/// What a kind of activity overrides may throw bad_alloc, and calls Python code only by way of the
/// session's questions.
class Activity : public CallObserver {
 public:
  Observing begins(ObservedCall& call) override;
  bool ends(ObservedCall& call, PyObject* result) override;

 protected:
  ~Activity() = default;

  /// nullptr: the call is no activity.
  virtual const Phase* phase_of(LoopSession& session, const ObservedCall& call) = 0;
  /// Tells the detector before the phase begins, so that it is in the right step. Not within the
  /// step of an optimizer.
  virtual void announce(LoopSession&, const ObservedCall&) {}
  /// While the phase is still open.
  virtual void ending(LoopSession&, const ObservedCall&, PyObject*) {}
  virtual void ended(LoopSession&, const ObservedCall&, PyObject*) {}
};

}  // namespace pig
