// SPDX-License-Identifier: Apache-2.0
//
// The floor of the harvester's benchmark: a thread that wakes as often, asks for the file's size
// and writes as much as an idle recording does, and nothing else.
#include <pybind11/pybind11.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "record/harvester.h"

namespace {

class Writer {
 public:
  explicit Writer(int file) : thread_([this, file] { write_until_rung(file); }) {}

  void stop() {
    alarm_.ring();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void write_until_rung(int file) {
    const std::array<char, 800> bytes{};
    for (off_t at = 0; alarm_.rings() == 0; at ^= 65536) {
      alarm_.sleep(0, pig::Harvester::kTick);
      struct stat status;
      if (fstat(file, &status) != 0) return;
      if (pwrite(file, bytes.data(), bytes.size(), at) < 0) return;
    }
  }

  pig::Alarm alarm_;
  std::thread thread_;
};

}  // namespace

PYBIND11_MODULE(_wake_floor, module, pybind11::mod_gil_not_used()) {
  pybind11::class_<Writer>(module, "Writer")
      .def(pybind11::init<int>(), pybind11::arg("file"))
      .def("stop", &Writer::stop, pybind11::call_guard<pybind11::gil_scoped_release>());
}
