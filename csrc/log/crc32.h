// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace pig {

/// CRC-32 as in zlib (polynomial 0xEDB88320), continued from `crc` (0 to begin). Eight bytes at a
/// time ("slicing by 8", Kounavis and Berry, 2005), about 2 GB/s: enough for what a harvester
/// writes, with no library to link.
uint32_t crc32(uint32_t crc, const void* data, size_t bytes);

}  // namespace pig
