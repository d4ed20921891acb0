// SPDX-License-Identifier: Apache-2.0
#include "auto/activity.h"

#include <new>

#include "hooks/torch_state.h"

namespace pig {

Observing Activity::begins(ObservedCall& call) {
  if (PIG_LIKELY(activity_session == session_number)) return Observing::ignored;
  LoopSession& session = LoopSession::instance();
  if (!session.is_active() || is_compiling()) return Observing::ignored;
  try {
    const Phase* phase = phase_of(session, call);
    if (phase == nullptr) return Observing::ignored;
    call.subject = phase;
    call.session = session_number;
    if (!session.is_updating()) announce(session, call);
    session.note_line(*phase);
  } catch (const std::bad_alloc&) {
    session.fail();
    return Observing::ignored;
  }
  if (session.raise_kept_error()) return Observing::failed;
  call.token = begin_activity(*static_cast<const Phase*>(call.subject));
  return Observing::begun;
}

bool Activity::ends(ObservedCall& call, PyObject* result) {
  LoopSession& session = LoopSession::instance();
  const bool is_of_session = session.is_active() && call.session == session_number;
  try {
    if (is_of_session) ending(session, call, result);
  } catch (const std::bad_alloc&) {
    session.fail();
  }
  end_activity(*static_cast<const Phase*>(call.subject), call.token);
  try {
    if (is_of_session) ended(session, call, result);
  } catch (const std::bad_alloc&) {
    session.fail();
  }
  return !session.raise_kept_error();
}

}  // namespace pig
