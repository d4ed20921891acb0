// SPDX-License-Identifier: Apache-2.0
//
// The build names the files' folders to the assembler.
#include "metrics/kernel_text.h"

#define PIG_EMBED(name, folder, file) \
  .global name               ;\
  .hidden name               ;\
  name:                      ;\
  .incbin file               ;\
  .byte 0                    ;

  .section .rodata
  PIG_KERNEL_TEXTS(PIG_EMBED)
  .section .note.GNU-stack, "", %progbits
