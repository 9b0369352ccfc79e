// What attention moves between lanes: entries of 16 bits that are widened in pairs, and reductions of several vectors at once.
#pragma once

#include "math.hpp"

namespace kvpact::KVPACT_ISA_NS {

// Sixteen neighbours as two vectors. bf16 come out as the even ones and the odd ones, which takes half of the operations of widening
// them in order; `settle` puts such a pair in order, `unsettle` is its inverse.
template <class T>
KVPACT_INLINE void load_pair(const T* p, Vec& a, Vec& b) {
  a = load(p);
  b = load(p + kLanes);
}
KVPACT_INLINE void load_pair(const bf16_t* p, Vec& a, Vec& b) { load_interleaved(p, a, b); }

template <class T>
KVPACT_INLINE void settle(const T*, Vec&, Vec&) {}
template <class T>
KVPACT_INLINE void unsettle(const T*, Vec&, Vec&) {}

#if KVPACT_AVX2

KVPACT_INLINE void settle(const bf16_t*, Vec& a, Vec& b) {
  const Vec low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);
  a = _mm256_permute2f128_ps(low, high, 0x20);
  b = _mm256_permute2f128_ps(low, high, 0x31);
}
KVPACT_INLINE void unsettle(const bf16_t*, Vec& a, Vec& b) {
  const Vec low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
  a = _mm256_shuffle_ps(low, high, 0x88);
  b = _mm256_shuffle_ps(low, high, 0xdd);
}

// Lane i of the result is v[i] reduced over its lanes: by the tree of sum_lanes, with a third of the shuffles of eight such trees.
template <class Op>
KVPACT_INLINE Vec reduce_each(const Vec (&v)[kLanes], Op op) {
  Vec four[4], two[2];
KVPACT_UNROLL
  for (int i = 0; i < 4; i++) four[i] = op(_mm256_permute2f128_ps(v[i], v[i + 4], 0x20), _mm256_permute2f128_ps(v[i], v[i + 4], 0x31));
KVPACT_UNROLL
  for (int i = 0; i < 2; i++) {
    const __m256d a = _mm256_castps_pd(four[2 * i]), b = _mm256_castps_pd(four[2 * i + 1]);
    two[i] = op(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
  }
  return op(_mm256_shuffle_ps(two[0], two[1], 0x88), _mm256_shuffle_ps(two[0], two[1], 0xdd));
}
// (x, a0, a1, a2) and (x, x, a0, a1) of both halves, each with its own x.
KVPACT_INLINE Vec after_one(Vec x, Vec a) { return _mm256_blend_ps(_mm256_shuffle_ps(a, a, 0x90), x, 0x11); }
KVPACT_INLINE Vec after_two(Vec x, Vec a) { return _mm256_blend_ps(_mm256_shuffle_ps(a, a, 0x40), x, 0x33); }
// a in four lanes, b in the other four.
KVPACT_INLINE Vec set2(float a, float b) { return _mm256_insertf128_ps(_mm256_set1_ps(a), _mm_set1_ps(b), 1); }

KVPACT_INLINE Vec sum_each(const Vec (&v)[kLanes]) {
  return reduce_each(v, [](Vec a, Vec b) { return add(a, b); });
}
KVPACT_INLINE Vec max_each(const Vec (&v)[kLanes]) {
  return reduce_each(v, [](Vec a, Vec b) { return max(a, b); });
}

#else

KVPACT_INLINE __m128 after_one(__m128 x, __m128 a) {
  const __m128 b = _mm_shuffle_ps(x, a, 0x00);  // x x a0 a0
  return _mm_shuffle_ps(_mm_shuffle_ps(b, b, 0x88), _mm_shuffle_ps(a, a, 0x99), 0x44);
}
KVPACT_INLINE Vec after_one(Vec x, Vec a) { return {after_one(x.lo, a.lo), after_one(x.hi, a.hi)}; }
KVPACT_INLINE Vec after_two(Vec x, Vec a) { return {_mm_shuffle_ps(x.lo, a.lo, 0x44), _mm_shuffle_ps(x.hi, a.hi, 0x44)}; }
KVPACT_INLINE Vec set2(float a, float b) { return {_mm_set1_ps(a), _mm_set1_ps(b)}; }

KVPACT_INLINE void settle(const bf16_t*, Vec& a, Vec& b) {
  const Vec even = a, odd = b;
  a = {_mm_unpacklo_ps(even.lo, odd.lo), _mm_unpackhi_ps(even.lo, odd.lo)};
  b = {_mm_unpacklo_ps(even.hi, odd.hi), _mm_unpackhi_ps(even.hi, odd.hi)};
}
KVPACT_INLINE void unsettle(const bf16_t*, Vec& a, Vec& b) {
  const Vec low = a, high = b;
  a = {_mm_shuffle_ps(low.lo, low.hi, 0x88), _mm_shuffle_ps(high.lo, high.hi, 0x88)};
  b = {_mm_shuffle_ps(low.lo, low.hi, 0xdd), _mm_shuffle_ps(high.lo, high.hi, 0xdd)};
}
KVPACT_INLINE Vec sum_each(const Vec (&v)[kLanes]) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; i++) lanes[i] = sum_lanes(v[i]);
  return load(lanes);
}
KVPACT_INLINE Vec max_each(const Vec (&v)[kLanes]) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; i++) lanes[i] = max_lanes(v[i]);
  return load(lanes);
}

#endif

}  // namespace kvpact::KVPACT_ISA_NS
