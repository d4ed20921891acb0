// SPDX-License-Identifier: Apache-2.0
//
// The kernels as nvcc compiled them, for all architectures, empty where the build found no nvcc;
// and their source, for NVRTC.
#define PIG_BEGIN(name) \
  .balign 16            ;\
  .global name          ;\
  .hidden name          ;\
  name:

  .section .rodata
  PIG_BEGIN(pig_kernel_image)
#if defined(PIG_KERNEL_IMAGE)
  .incbin PIG_KERNEL_IMAGE
#endif
  PIG_BEGIN(pig_kernel_image_end)
  PIG_BEGIN(pig_metric_kernel_cu)
  .incbin PIG_METRIC_KERNEL_CU
  .byte 0
  PIG_BEGIN(pig_metric_kernel_h)
  .incbin PIG_METRIC_KERNEL_H
  .byte 0
  PIG_BEGIN(pig_metric_state_h)
  .incbin PIG_METRIC_STATE_H
  .byte 0
  .section .note.GNU-stack, "", %progbits
