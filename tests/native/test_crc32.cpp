// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "log/crc32.h"

namespace {

/// The definition, bit by bit.
uint32_t reference(uint32_t crc, const uint8_t* data, size_t bytes) {
  crc = ~crc;
  for (size_t i = 0; i < bytes; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
  }
  return ~crc;
}

void test_known_values() {
  const auto crc_of = [](const std::string& text) {
    return pig::crc32(0, text.data(), text.size());
  };
  CHECK_EQ(crc_of(""), 0u);
  CHECK_EQ(crc_of("a"), 0xE8B7BE43u);
  CHECK_EQ(crc_of("123456789"), 0xCBF43926u);
  CHECK_EQ(crc_of("The quick brown fox jumps over the lazy dog"), 0x414FA339u);
  CHECK_EQ(crc_of(std::string(32, '\0')), 0x190A55ADu);
  CHECK_EQ(crc_of(std::string(32, '\xFF')), 0xFF6CAB0Bu);
}

std::vector<uint8_t> random_bytes(size_t count) {
  std::mt19937 random(1);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

void test_every_length_and_alignment() {
  const std::vector<uint8_t> bytes = random_bytes(16 + 200);
  for (size_t begin = 0; begin < 16; ++begin)
    for (size_t length = 0; length <= 200; ++length)
      CHECK_EQ(pig::crc32(0, &bytes[begin], length), reference(0, &bytes[begin], length));
}

void test_continued_anywhere() {
  const std::vector<uint8_t> bytes = random_bytes(100);
  const uint32_t whole = reference(0, bytes.data(), bytes.size());
  for (size_t first = 0; first <= bytes.size(); ++first)
    for (size_t second = first; second <= bytes.size(); ++second) {
      uint32_t crc = pig::crc32(0, bytes.data(), first);
      crc = pig::crc32(crc, bytes.data() + first, second - first);
      crc = pig::crc32(crc, bytes.data() + second, bytes.size() - second);
      CHECK_EQ(crc, whole);
    }
}

}  // namespace

int main() {
  test_known_values();
  test_every_length_and_alignment();
  test_continued_anywhere();
}
