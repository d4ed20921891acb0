// SPDX-License-Identifier: Apache-2.0
//
// What a loop's begin and end of a step do: its entry in the recording that is active, its NVTX
// range, whether or not anything is recorded, and the device timing of the step. With the GIL.
#pragma once

#include <cstdint>

#include "record/step_tracker.h"

namespace pig {

/// Opens a step on the calling thread. The token says which: the recording's number (in 31 bits)
/// and the step's serial plus one. 0 when nothing is recorded, -1 when a step is open already.
/// Without a range, `begin_step_range` may begin it later.
int64_t begin_step(bool with_range = true);
void begin_step_range(int64_t token);

// A token that does not fit the active recording, or whose step is closed, changes nothing there.
void add_step_item(int64_t token, double samples);
/// The parameters have just been updated: the step ends here if nothing more belongs to it.
void note_step_update(int64_t token);
void end_step(int64_t token, bool complete, StepEnd when = StepEnd::kNow);
/// The loop is over.
void no_step_follows();
void drop_step(int64_t token, bool has_range = true);

}  // namespace pig
