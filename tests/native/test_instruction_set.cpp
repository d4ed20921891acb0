// SPDX-License-Identifier: Apache-2.0
//
// Which instruction set is taken, as the environment allows. It is read once in a process, so each
// case has one of its own.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "base/instruction_set.h"
#include "check.h"
#include "metrics/row_scan.h"

namespace {

using pig::InstructionSet;

/// In a child, where the environment variable has this value.
InstructionSet with_value(const char* value) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("PYINSTRUMENT_GPU_INSTRUCTION_SET", value, 1);
    const InstructionSet set = pig::instruction_set();
    const auto sets = pig::metrics::row_functions_by_instructions();
    CHECK_EQ(sets.size(), static_cast<size_t>(set) + 1);
    CHECK(&pig::metrics::row_functions(pig::metrics::kFloat64) == sets.back());
    _exit(static_cast<int>(set));
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status));
  return static_cast<InstructionSet>(WEXITSTATUS(status));
}

void test_a_lesser_one_can_be_forced() {
  CHECK(with_value("baseline") == InstructionSet::kBaseline);
  CHECK(with_value("") == pig::best_of_machine());
}

}  // namespace

int main() { test_a_lesser_one_can_be_forced(); }
