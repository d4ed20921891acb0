// SPDX-License-Identifier: Apache-2.0
//
// Loops whose instructions are counted from outside (tests/hot/test_nvtx_cost.py): `test_nvtx_cost
// empty|push_pop COUNT`. Run without arguments it checks only that nothing is attached.
#include <cstdlib>
#include <cstring>

#include "check.h"
#include "counted.h"
#include "hot/nvtx_range.h"

namespace {

/// The compiler may keep nothing in registers across it.
void barrier() { asm volatile("" ::: "memory"); }

void empty(long count) {
  for (long i = 0; i < count; ++i) {
    barrier();
    barrier();
  }
}

void push_pop(long count, const pig::NvtxName& name) {
  for (long i = 0; i < count; ++i) {
    pig::nvtx_push(name);
    barrier();
    pig::nvtx_pop(name);
    barrier();
  }
}

}  // namespace

int main(int argc, char** argv) {
  unsetenv("NVTX_INJECTION64_PATH");
  pig::start_nvtx([] { return std::string(); });
  CHECK(!pig::nvtx_attached);
  const pig::NvtxName name = pig::nvtx_name("phase");
  if (argc != 3) return 0;
  const long count = std::atol(argv[2]);
  if (std::strcmp(argv[1], "empty") == 0) {
    counted([&] { empty(count); });
  } else {
    counted([&] { push_pop(count, name); });
  }
}
