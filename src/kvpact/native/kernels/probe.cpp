#include "probe.hpp"

#include "simd.hpp"

namespace kvpact::KVPACT_ISA_NS {

int64_t multiply_adds(int64_t rounds, float* sink) {
  Vec sums[kAccumulators];
  for (int i = 0; i < kAccumulators; i++) sums[i] = set1(*sink + static_cast<float>(i));  // equal ones would be computed once
  const Vec factor = set1(0.999f + *sink), added = set1(0.001f);
  for (int64_t round = 0; round < rounds; round++) {
    KVPACT_UNROLL
    for (int i = 0; i < kAccumulators; i++) sums[i] = fma(sums[i], factor, added);
  }
  for (int i = 1; i < kAccumulators; i++) sums[0] = add(sums[0], sums[i]);
  *sink = sum_lanes(sums[0]) * 0.0f;
  return rounds * kAccumulators * kLanes * 2;
}

void read_lines(const void* data, int64_t num_bytes, const void* next, float* sink) {
  constexpr int64_t kLineFloats = 16;
  const float *from = static_cast<const float*>(data), *ahead = static_cast<const float*>(next);
  Vec sums[2] = {zero(), zero()};
  for (int64_t i = 0; i + kLineFloats <= num_bytes / 4; i += kLineFloats) {
    prefetch_l2(ahead + i);
    sums[0] = bit_xor(sums[0], load(from + i));
    sums[1] = bit_xor(sums[1], load(from + i + kLanes));
  }
  float lanes[kLanes];
  store(lanes, bit_xor(sums[0], sums[1]));
  *sink = lanes[0];
}

}  // namespace kvpact::KVPACT_ISA_NS
