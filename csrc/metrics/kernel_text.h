// SPDX-License-Identifier: Apache-2.0
//
// The kernels as text, for NVRTC: metric_kernel.cu and what it includes, as kernel_text.S embeds
// them. F(name of the text, folder as it is included by, file).
#pragma once

#define PIG_KERNEL_TEXTS(F)                                     \
  F(pig_metric_kernel_cu, "", "metric_kernel.cu")               \
  F(pig_kernel_elements_cuh, "metrics/", "kernel_elements.cuh") \
  F(pig_kernel_row_cuh, "metrics/", "kernel_row.cuh")           \
  F(pig_kernel_ring_cuh, "metrics/", "kernel_ring.cuh")         \
  F(pig_kernel_numbers_cuh, "metrics/", "kernel_numbers.cuh")   \
  F(pig_kernel_finish_cuh, "metrics/", "kernel_finish.cuh")     \
  F(pig_metric_kernel_h, "metrics/", "metric_kernel.h")         \
  F(pig_element_batch_h, "metrics/", "element_batch.h")         \
  F(pig_metric_state_h, "metrics/", "metric_state.h")           \
  F(pig_element_totals_h, "metrics/", "element_totals.h")       \
  F(pig_state_fields_h, "metrics/", "state_fields.h")

#if !defined(__ASSEMBLER__)
#define PIG_DECLARE(name, folder, file) \
  extern "C" const char name[] __attribute__((visibility("hidden")));
PIG_KERNEL_TEXTS(PIG_DECLARE)
#undef PIG_DECLARE
#endif
