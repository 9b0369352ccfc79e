// Draws without a stream: kvpact.model.philox to the bit, and its documentation.
#pragma once

#include <cstdint>

namespace kvpact {

// Word 0 of Philox4x64-10 (Salmon et al., SC'11) with the key (key0, key1) and the counter (counter0, 0, 0, 0).
inline uint64_t philox4x64(uint64_t key0, uint64_t key1, uint64_t counter0) {
  __extension__ using Wide = unsigned __int128;
  uint64_t word[4] = {counter0, 0, 0, 0};
  for (int round = 0; round < 10; round++) {
    const Wide a = Wide{0xD2E7470EE14C6C93} * word[0], b = Wide{0xCA5A826395121157} * word[2];
    word[0] = static_cast<uint64_t>(b >> 64) ^ word[1] ^ key0;
    word[1] = static_cast<uint64_t>(b);
    word[2] = static_cast<uint64_t>(a >> 64) ^ word[3] ^ key1;
    word[3] = static_cast<uint64_t>(a);
    key0 += 0x9E3779B97F4A7C15;
    key1 += 0xBB67AE8584CAA73B;
  }
  return word[0];
}

// A number in [0, 1), on a grid of 2^-53.
inline double uniform(uint64_t seed, uint64_t choice, uint64_t output_position) {
  return static_cast<double>(philox4x64(seed, choice, output_position + 1) >> 11) * 0x1p-53;
}

}  // namespace kvpact
