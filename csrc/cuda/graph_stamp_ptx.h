// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pig::cuda {

/// The kernel that marks a place in a graph, as text: the driver compiles it for the device at
/// hand, of any architecture that CUDA 12 and newer know.
///
/// It writes the device's clock (40 bits of ns) and how often this node has run (24 bits) as one
/// word, which is never torn, into the node's own ring in mapped host memory. The count is the
/// node's, in memory of the module that is zero when it is loaded. Runs of one executable graph
/// follow each other, so the count needs no atomic, and as nobody waits for the word it needs no
/// fence.
inline constexpr char kGraphStampPtx[] = R"ptx(
.version 6.4
.target sm_60
.address_size 64
.visible .global .align 4 .b32 pig_stamp_counts[16384];
.visible .entry pig_stamp(.param .u64 ring, .param .u32 node, .param .u32 mask)
{
  .reg .u64 %ring, %counts, %now, %word, %offset, %wide;
  .reg .u32 %node, %mask, %count, %row;
  mov.u64 %now, %globaltimer;
  ld.param.u64 %ring, [ring];
  ld.param.u32 %node, [node];
  ld.param.u32 %mask, [mask];
  cvta.to.global.u64 %ring, %ring;
  mov.u64 %counts, pig_stamp_counts;
  mul.wide.u32 %offset, %node, 4;
  add.u64 %counts, %counts, %offset;
  ld.volatile.global.u32 %count, [%counts];
  add.u32 %count, %count, 1;
  st.volatile.global.u32 [%counts], %count;
  and.b32 %row, %count, %mask;
  mul.wide.u32 %offset, %row, 8;
  add.u64 %ring, %ring, %offset;
  shl.b64 %word, %now, 24;
  cvt.u64.u32 %wide, %count;
  and.b64 %wide, %wide, 0xFFFFFF;
  or.b64 %word, %word, %wide;
  st.volatile.global.u64 [%ring], %word;
  ret;
}
)ptx";

}  // namespace pig::cuda
