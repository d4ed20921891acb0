// SPDX-License-Identifier: Apache-2.0
#include "hot/nvtx_range.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>
#include <nvtx3/nvtx3.hpp>
#include <utility>
#include <vector>

#include "base/threads.h"
#include "base/throwing.h"

namespace pig {
namespace {

/// Colours that are told apart on a dark and a light background, and by eyes that see no red, no
/// green or no blue. The exports have the same.
constexpr std::array<uint32_t, 12> kColors = {0xFF4E79A7, 0xFFF28E2B, 0xFF918DEB, 0xFF5EEBC0,
                                              0xFFAFCC7A, 0xFF8D2FEB, 0xFF803361, 0xFF806B4C,
                                              0xFFA65D21, 0xFF4742A6, 0xFF42A697, 0xFFA0CBE8};

/// A grey: steps stand back behind their phases. The exports have the same.
constexpr uint32_t kStepColor = 0xFF8C8C8C;

/// FNV-1a: the same name has the same colour in every process.
uint32_t color_of(const std::string& name) {
  uint32_t hash = 2166136261u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  return kColors[hash % kColors.size()];
}

nvtxDomainHandle_t domain = nullptr;
std::string (*thread_name_of_caller)() = nullptr;
std::atomic<int64_t> step_number{-1};

struct OpenRange {
  const NvtxName* name;
  NvtxKind kind;
  bool pushed;
  nvtxRangeId_t range;  ///< of one that is not `pushed`
};

/// More than can be in sight; begins without ends must not grow it forever.
constexpr size_t kMaxOpenRanges = 4096;
using OpenRanges = std::vector<OpenRange>;
thread_local OpenRanges* open_ranges = nullptr;
thread_local bool thread_is_named = false;
const ThreadEnd ranges_end([](void* of_thread) {
  open_ranges = nullptr;
  delete static_cast<OpenRanges*>(of_thread);
});

/// The calling thread's; nullptr where there is no memory.
OpenRanges* ranges_of_thread() {
  if (PIG_UNLIKELY(open_ranges == nullptr)) {
    open_ranges = new (std::nothrow) OpenRanges;
    if (!ranges_end.set(open_ranges)) delete std::exchange(open_ranges, nullptr);
  }
  return open_ranges;
}

nvtx3::event_attributes attributes_of(const NvtxName& name, NvtxKind kind) {
  const int64_t step = step_number.load(std::memory_order_relaxed);
  return nvtx3::event_attributes{
      nvtx3::category{static_cast<uint32_t>(kind)},
      nvtx3::color{kind == NvtxKind::kStep ? kStepColor : name.color}, nvtx3::message{name.message},
      step >= 0 ? nvtx3::payload{step} : nvtx3::payload{NVTX_PAYLOAD_UNKNOWN, {}}};
}

void name_thread() {
  if (thread_is_named) return;
  thread_is_named = true;  // before the call, which runs Python code and may enter a phase
  const std::string name = thread_name_of_caller();
  if (!name.empty()) nvtxNameOsThreadA(static_cast<uint32_t>(gettid()), name.c_str());
}

}  // namespace

bool nvtx_attached = false;
bool nvtx_active = false;

void start_nvtx(std::string (*thread_name)()) {
  thread_name_of_caller = thread_name;
  if (std::getenv("NVTX_DISABLE") != nullptr) return;
  domain = nvtxDomainCreateA("pyinstrument_gpu");
  nvtx_attached = domain != nullptr;
  nvtx_active = nvtx_attached;
  nvtxDomainNameCategoryA(domain, static_cast<uint32_t>(NvtxKind::kPhase), "phase");
  nvtxDomainNameCategoryA(domain, static_cast<uint32_t>(NvtxKind::kStep), "step");
  nvtxDomainNameCategoryA(domain, static_cast<uint32_t>(NvtxKind::kMetric), "metric");
}

void set_nvtx_enabled(bool enabled) { nvtx_active = enabled && nvtx_attached; }

NvtxName nvtx_name(const std::string& name) {
  return {nvtx_attached ? nvtxDomainRegisterStringA(domain, name.c_str()) : nullptr,
          color_of(name)};
}

void set_nvtx_step(int64_t step) { step_number.store(step, std::memory_order_relaxed); }

void push_nvtx_range(const NvtxName& name, NvtxKind kind) noexcept {
  try_allocating([&] {
    name_thread();
    OpenRanges* const ranges = ranges_of_thread();
    if (ranges == nullptr || ranges->size() == kMaxOpenRanges) return;
    ranges->push_back({&name, kind, true, 0});
    nvtxDomainRangePushEx(domain, attributes_of(name, kind).get());
  });  // or it is not shown
}

void pop_nvtx_range(const NvtxName& name) noexcept {
  if (open_ranges == nullptr) return;
  OpenRanges& ranges = *open_ranges;
  size_t at = ranges.size();
  while (at > 0 && ranges[at - 1].name != &name) --at;
  if (at == 0) return;  // it began before the tool came, or on another thread
  const size_t closing = at - 1;
  if (ranges[closing].pushed) {
    for (size_t i = ranges.size(); i-- > closing;)
      if (ranges[i].pushed) nvtxDomainRangePop(domain);
    for (size_t i = closing + 1; i < ranges.size(); ++i) {
      OpenRange& above = ranges[i];
      if (!above.pushed) continue;
      above.pushed = false;
      above.range = nvtxDomainRangeStartEx(domain, attributes_of(*above.name, above.kind).get());
    }
  } else {
    nvtxDomainRangeEnd(domain, ranges[closing].range);
  }
  ranges.erase(ranges.begin() + static_cast<std::ptrdiff_t>(closing));
}

nvtxRangeId_t start_nvtx_range(const NvtxName& name) noexcept {
  if (!try_allocating(name_thread)) return 0;
  return nvtxDomainRangeStartEx(domain, attributes_of(name, NvtxKind::kPhase).get());
}

void mark_nvtx_value(const std::string& name, double value) noexcept {
  const nvtx3::event_attributes attributes{
      nvtx3::category{static_cast<uint32_t>(NvtxKind::kMetric)}, nvtx3::color{color_of(name)},
      nvtx3::message{name}, nvtx3::payload{value}};
  nvtxDomainMarkEx(domain, attributes.get());
}

void end_nvtx_range(nvtxRangeId_t range) noexcept { nvtxDomainRangeEnd(domain, range); }

}  // namespace pig
