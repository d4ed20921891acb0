// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nvtx3/nvToolsExt.h>

#include <cstdint>
#include <string>

namespace pig {

/// Ranges in the NVTX domain "pyinstrument_gpu", shown by Nsight Systems. With no tool attached a
/// push or pop is a load and a branch. Never gated on nvtxDomainIsEnabled: some versions of Nsight
/// Systems answer 0 while they record.
extern bool nvtx_enabled;

/// Off for good when NVTX_DISABLE is set.
void set_nvtx_enabled(bool enabled);

nvtxDomainHandle_t nvtx_domain();

/// The attributes of a phase's ranges: its registered name and a colour that depends on the name
/// alone.
nvtxEventAttributes_t nvtx_attributes(const std::string& name);

inline void nvtx_push(const nvtxEventAttributes_t& attributes, nvtxDomainHandle_t domain) {
  if (nvtx_enabled) nvtxDomainRangePushEx(domain, &attributes);
}

inline void nvtx_pop(nvtxDomainHandle_t domain) {
  if (nvtx_enabled) nvtxDomainRangePop(domain);
}

}  // namespace pig
