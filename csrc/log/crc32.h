// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace pig {

/// CRC-32 as in zlib (polynomial 0xEDB88320), continued from `crc` (0 to begin). Some GB/s where
/// the processor multiplies without carries (x86-64) or has instructions for this very CRC
/// (aarch64), which is nearly everywhere, and some 200 MB/s elsewhere.
uint32_t crc32(uint32_t crc, const void* data, size_t bytes);

}  // namespace pig
