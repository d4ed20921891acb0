// SPDX-License-Identifier: Apache-2.0
#include "metrics/kernel_image.h"

extern "C" {
#define PIG_EMBEDDED(name) extern const char name[] __attribute__((visibility("hidden")))
PIG_EMBEDDED(pig_kernel_image);
PIG_EMBEDDED(pig_kernel_image_end);
PIG_EMBEDDED(pig_metric_kernel_cu);
PIG_EMBEDDED(pig_metric_kernel_h);
PIG_EMBEDDED(pig_metric_state_h);
#undef PIG_EMBEDDED
}

namespace pig::metrics {

std::string_view kernel_image() {
  return {&pig_kernel_image[0],
          static_cast<size_t>(&pig_kernel_image_end[0] - &pig_kernel_image[0])};
}

cuda::CompiledCode compile_kernels(int major, int minor) {
  return cuda::compile_by_nvrtc({"metric_kernel.cu", &pig_metric_kernel_cu[0]},
                                {{"metrics/metric_kernel.h", &pig_metric_kernel_h[0]},
                                 {"metrics/metric_state.h", &pig_metric_state_h[0]}},
                                major, minor);
}

}  // namespace pig::metrics
