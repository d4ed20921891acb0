// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/ticks.h"
#include "python/bindings.h"
#include "record/parts.h"
#include "record/recording_thread.h"

namespace py = pybind11;

namespace pig {
namespace {

/// An item of the log holds a text of this length at most.
constexpr size_t kMaxText = 1024;

std::optional<uint32_t> sync_site(const std::string& file, uint32_t line,
                                  const std::string& function, uint32_t kind) {
  // The end of a path says more than its begin.
  const size_t cut = file.size() > kMaxText ? file.size() - kMaxText : 0;
  return parts().syncs.add_site({line, kind, file.substr(cut), function.substr(0, kMaxText)});
}

uint64_t sync_begin() { return read_ticks(); }

void sync_end(uint32_t site, std::optional<uint64_t> begin, uint64_t bytes) {
  const uint64_t now = read_ticks();
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  ThreadState* thread = epoch != 0 ? recording_thread(epoch) : nullptr;
  if (thread == nullptr) return;
  Recorder& recorder = Recorder::instance();
  const auto step = static_cast<uint32_t>(open_step.load(std::memory_order_relaxed));
  const int64_t begin_ns = recorder.clock().to_ns(begin.value_or(now));
  parts().syncs.add({begin_ns, begin ? recorder.clock().to_ns(now) - begin_ns : -1, bytes, site,
                     thread->innermost_path(), step, thread->serial()});
}

}  // namespace

void add_sync_functions(py::module_& module) {
  module.def("sync_site", &sync_site, py::arg("file"), py::arg("line"), py::arg("function"),
             py::arg("kind"));
  module.def("sync_begin", &sync_begin);
  module.def("sync_end", &sync_end, py::arg("site"), py::arg("begin"), py::arg("bytes"));
  module.def(
      "sync_watch", [](bool on, bool as_if) { parts().syncs.watch(on, as_if); }, py::arg("on"),
      py::arg("as_if"));
  module.def("sync_placed", [] { parts().syncs.place(); });
}

}  // namespace pig
