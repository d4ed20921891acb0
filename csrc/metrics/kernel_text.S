// SPDX-License-Identifier: Apache-2.0
//
// The kernels' source and its headers, for NVRTC. The build names their folders to the assembler.
#define PIG_EMBED(name, file) \
  .global name               ;\
  .hidden name               ;\
  name:                      ;\
  .incbin file               ;\
  .byte 0

  .section .rodata
  PIG_EMBED(pig_metric_kernel_cu, "metric_kernel.cu")
  PIG_EMBED(pig_kernel_elements_cuh, "kernel_elements.cuh")
  PIG_EMBED(pig_kernel_row_cuh, "kernel_row.cuh")
  PIG_EMBED(pig_kernel_finish_cuh, "kernel_finish.cuh")
  PIG_EMBED(pig_metric_kernel_h, "metric_kernel.h")
  PIG_EMBED(pig_binary_totals_h, "binary_totals.h")
  PIG_EMBED(pig_element_batch_h, "element_batch.h")
  PIG_EMBED(pig_metric_state_h, "metric_state.h")
  PIG_EMBED(pig_regression_totals_h, "regression_totals.h")
  PIG_EMBED(pig_row_values_h, "row_values.h")
  PIG_EMBED(pig_state_fields_h, "state_fields.h")
  PIG_EMBED(pig_value_totals_h, "value_totals.h")
  .section .note.GNU-stack, "", %progbits
