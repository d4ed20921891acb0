// SPDX-License-Identifier: Apache-2.0
//
// The harvester calls this when its thread has slept for 95 ms and others have had the caches, so
// what counts is how much memory it touches. Tables for eight bytes at a time have 128 cache lines,
// and each has to be fetched. The table here has one, and does only what the processor's own
// instructions leave over.
#include "log/crc32.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace pig {
namespace {

static_assert(std::endian::native == std::endian::little,
              "run files are written as they lie in memory");

/// What four bits do to the register.
alignas(64) constexpr auto kOfFourBits = [] {
  std::array<uint32_t, 16> table{};
  for (uint32_t bits = 0; bits < 16; ++bits) {
    table[bits] = bits;
    for (int i = 0; i < 4; ++i)
      table[bits] = (table[bits] >> 1) ^ ((table[bits] & 1) != 0 ? 0xEDB88320u : 0u);
  }
  return table;
}();

uint32_t add_bytes(uint32_t state, const uint8_t* p, size_t bytes) {
  for (; bytes > 0; ++p, --bytes) {
    state ^= *p;
    state = (state >> 4) ^ kOfFourBits[state & 15];
    state = (state >> 4) ^ kOfFourBits[state & 15];
  }
  return state;
}

#if defined(__x86_64__)

bool is_fast() { return __builtin_cpu_supports("pclmul") != 0; }

/// Folds 16 bytes onto the next 16, again and again: a polynomial that is congruent to the whole,
/// and 16 bytes long, is left over (Gopal et al., "Fast CRC Computation for Generic Polynomials
/// Using PCLMULQDQ Instruction", Intel 2009). The constants are x^160 and x^96 modulo the CRC's
/// polynomial, bits reflected.
[[gnu::target("pclmul")]] uint32_t add_blocks(uint32_t state, const uint8_t*& p, size_t& bytes) {
  const auto load = [](const uint8_t* at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  };
  const __m128i constants = _mm_set_epi64x(0x0CCAA009E, 0x1751997D0);
  __m128i folded = _mm_xor_si128(load(p), _mm_cvtsi32_si128(static_cast<int>(state)));
  for (p += 16, bytes -= 16; bytes >= 16; p += 16, bytes -= 16)
    folded = _mm_xor_si128(load(p), _mm_xor_si128(_mm_clmulepi64_si128(folded, constants, 0x00),
                                                  _mm_clmulepi64_si128(folded, constants, 0x11)));
  uint8_t rest[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest), folded);
  return add_bytes(0, rest, sizeof rest);
}

#elif defined(__aarch64__)

bool is_fast() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }

[[gnu::target("+crc")]] uint32_t add_blocks(uint32_t state, const uint8_t*& p, size_t& bytes) {
  for (; bytes >= 8; p += 8, bytes -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    state = __crc32d(state, word);
  }
  return state;
}

#else

bool is_fast() { return false; }
uint32_t add_blocks(uint32_t state, const uint8_t*&, size_t&) { return state; }

#endif

}  // namespace

uint32_t crc32(uint32_t crc, const void* data, size_t bytes) {
  const auto* p = static_cast<const uint8_t*>(data);
  uint32_t state = ~crc;
  if (bytes >= 16 && is_fast()) state = add_blocks(state, p, bytes);
  return ~add_bytes(state, p, bytes);
}

}  // namespace pig
