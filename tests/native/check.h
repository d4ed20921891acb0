// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

/// Ends the program, and with it the test, when the condition does not hold.
#define CHECK(condition)                                            \
  do {                                                              \
    if (!(condition)) check_failed(__FILE__, __LINE__, #condition); \
  } while (false)

/// The same for `a == b`; shows both.
#define CHECK_EQ(a, b) check_equal((a), (b), __FILE__, __LINE__, #a " == " #b)

[[noreturn]] inline void check_failed(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, what.c_str());
  std::abort();
}

template <typename A, typename B>
void check_equal(const A& a, const B& b, const char* file, int line, const char* what) {
  if (a == b) return;
  std::ostringstream text;
  text << what << ", with " << a << " and " << b;
  check_failed(file, line, text.str());
}
