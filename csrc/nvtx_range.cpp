// SPDX-License-Identifier: Apache-2.0
#include "nvtx_range.h"

#include <array>
#include <cstdlib>

namespace pig {
namespace {

const bool nvtx_disabled = std::getenv("NVTX_DISABLE") != nullptr;

/// Colours that are told apart on Nsight's dark and light background.
constexpr std::array<uint32_t, 12> kColors = {0xFF4E79A7, 0xFFF28E2B, 0xFFE15759, 0xFF76B7B2,
                                              0xFF59A14F, 0xFFEDC948, 0xFFB07AA1, 0xFFFF9DA7,
                                              0xFF9C755F, 0xFF86BCB6, 0xFFD37295, 0xFFA0CBE8};

/// FNV-1a: the same name has the same colour in every process.
uint32_t color_of(const std::string& name) {
  uint32_t hash = 2166136261u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  return kColors[hash % kColors.size()];
}

}  // namespace

bool nvtx_enabled = !nvtx_disabled;

void set_nvtx_enabled(bool enabled) { nvtx_enabled = enabled && !nvtx_disabled; }

nvtxDomainHandle_t nvtx_domain() {
  static const nvtxDomainHandle_t domain =
      nvtx_disabled ? nullptr : nvtxDomainCreateA("pyinstrument_gpu");
  return domain;
}

nvtxEventAttributes_t nvtx_attributes(const std::string& name) {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.colorType = NVTX_COLOR_ARGB;
  attributes.color = color_of(name);
  attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  attributes.message.registered =
      nvtx_disabled ? nullptr : nvtxDomainRegisterStringA(nvtx_domain(), name.c_str());
  return attributes;
}

}  // namespace pig
