// SPDX-License-Identifier: Apache-2.0
//
// The program that looks into a stall from outside. It is started without the GIL, which whoever
// hangs may hold for ever, and by no fork: of a process with a GPU and many threads little works in
// a forked child.
#pragma once

#include <string>
#include <vector>

namespace pig {

/// What to start, as a command and its environment; an empty command: nothing. With the GIL.
void set_stall_program(std::vector<std::string> command, std::vector<std::string> environment);

/// Starts it and waits until it has gone into the background. On a thread of its own, without the
/// GIL.
void run_stall_program();

}  // namespace pig
