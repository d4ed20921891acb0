// SPDX-License-Identifier: Apache-2.0
//
// Marks what of a program has its instructions counted from outside (tests/helpers/callgrind.py).
// The rest of them are not the same in every run: the loader, and the C library where it starts and
// ends, read the environment, the paths and the locale.
#pragma once

#include <type_traits>

/// Callgrind knows it by its name.
extern "C" [[gnu::noinline]] inline void counted_instructions(void (*run)(void*), void* state) {
  run(state);
  asm volatile("" ::: "memory");  // or the call would be a jump, which leaves this function
}

/// Runs it. The few instructions around `run` itself count too.
template <typename Run>
void counted(Run&& run) {
  // Volatile: a compiler that knows what it calls makes a copy for that, with another name.
  void (*volatile call)(void (*)(void*), void*) = counted_instructions;
  call([](void* state) { (*static_cast<std::remove_reference_t<Run>*>(state))(); }, &run);
}
