// Eight lanes of fp32, whatever the instruction set: the one vector type that kernels are written in.
// Each kernel source is compiled once per instruction set, with KVPACT_ISA_NS naming the build's namespace.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define KVPACT_AVX2 1
#include <immintrin.h>
#else
#define KVPACT_AVX2 0
#include <emmintrin.h>
#endif

namespace kvpact::KVPACT_ISA_NS {

constexpr int kLanes = 8;

#if KVPACT_AVX2

using Vec = __m256;

static inline Vec zero() { return _mm256_setzero_ps(); }
static inline Vec set1(float x) { return _mm256_set1_ps(x); }
static inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
static inline void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
static inline Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
static inline Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
static inline Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
static inline Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
static inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
static inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
// a * b + c, rounded once. A build without FMA rounds twice: bits are promised within one build.
static inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline float fma(float a, float b, float c) { return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c))); }
static inline Vec load(const uint16_t* p, bool is_bf16) {
  __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return is_bf16 ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)) : _mm256_cvtph_ps(h);
}

using Mask = __m256;  // each lane all ones or all zeros

static inline Vec sqrt(Vec a) { return _mm256_sqrt_ps(a); }
static inline Vec bit_and(Vec a, Vec b) { return _mm256_and_ps(a, b); }
static inline Vec bit_or(Vec a, Vec b) { return _mm256_or_ps(a, b); }
static inline Vec bit_xor(Vec a, Vec b) { return _mm256_xor_ps(a, b); }
static inline Mask less(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
static inline Mask equal(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
static inline Vec select(Mask m, Vec yes, Vec no) { return _mm256_blendv_ps(no, yes, m); }
static inline int lanes_of(Mask m) { return _mm256_movemask_ps(m); }
// Lane i is on when bit i of `bits` is.
static inline Mask mask_of(uint32_t bits) {
  const __m256i one = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), one), one));
}
// The bit patterns, moved left by 23: the low 8 bits become an exponent.
static inline Vec shift_to_exponent(Vec a) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 23)); }
// Whole numbers as fp32 of the biased exponents.
static inline Vec exponent_of(Vec a) { return _mm256_cvtepi32_ps(_mm256_srli_epi32(_mm256_castps_si256(a), 23)); }
// Lanes (i, i + 4), then (i, i + 2), then (0, 1): the one tree of every horizontal sum.
static inline float sum_lanes(Vec v) {
  __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  a = _mm_add_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps(a, a, 1)));
}
static inline float max_lanes(Vec v) {
  __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  a = _mm_max_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps(a, a, 1)));
}
// Round to nearest even; a NaN stays one.
static inline void store_bf16(uint16_t* p, Vec v) {
  const __m256i x = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1));
  const __m256i near = _mm256_add_epi32(x, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_or_si256(x, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i r = _mm256_srli_epi32(_mm256_blendv_epi8(near, nan, is_nan), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
static inline void store_f16(uint16_t* p, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

#else

struct Vec {
  __m128 lo, hi;
};

static inline Vec zero() { return {_mm_setzero_ps(), _mm_setzero_ps()}; }
static inline Vec set1(float x) { return {_mm_set1_ps(x), _mm_set1_ps(x)}; }
static inline Vec load(const float* p) { return {_mm_loadu_ps(p), _mm_loadu_ps(p + 4)}; }
static inline void store(float* p, Vec v) {
  _mm_storeu_ps(p, v.lo);
  _mm_storeu_ps(p + 4, v.hi);
}
static inline Vec add(Vec a, Vec b) { return {_mm_add_ps(a.lo, b.lo), _mm_add_ps(a.hi, b.hi)}; }
static inline Vec sub(Vec a, Vec b) { return {_mm_sub_ps(a.lo, b.lo), _mm_sub_ps(a.hi, b.hi)}; }
static inline Vec mul(Vec a, Vec b) { return {_mm_mul_ps(a.lo, b.lo), _mm_mul_ps(a.hi, b.hi)}; }
static inline Vec div(Vec a, Vec b) { return {_mm_div_ps(a.lo, b.lo), _mm_div_ps(a.hi, b.hi)}; }
static inline Vec max(Vec a, Vec b) { return {_mm_max_ps(a.lo, b.lo), _mm_max_ps(a.hi, b.hi)}; }
static inline Vec min(Vec a, Vec b) { return {_mm_min_ps(a.lo, b.lo), _mm_min_ps(a.hi, b.hi)}; }
static inline Vec fma(Vec a, Vec b, Vec c) { return add(mul(a, b), c); }
static inline float fma(float a, float b, float c) { return a * b + c; }

using Mask = Vec;

static inline Vec load(const uint16_t* p, bool is_bf16) {
  const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), none = _mm_setzero_si128();
  if (is_bf16) return {_mm_castsi128_ps(_mm_unpacklo_epi16(none, h)), _mm_castsi128_ps(_mm_unpackhi_epi16(none, h))};
  const __m128i part[2] = {_mm_unpacklo_epi16(h, none), _mm_unpackhi_epi16(h, none)};
  __m128 wide[2];
  for (int i = 0; i < 2; i++) {
    // The exponent is rebased by an exact multiplication, which also normalises subnormals; infinity and NaN are set by hand.
    const __m128i low = _mm_slli_epi32(_mm_and_si128(part[i], _mm_set1_epi32(0x7fff)), 13);
    const __m128i sign = _mm_slli_epi32(_mm_and_si128(part[i], _mm_set1_epi32(0x8000)), 16);
    const __m128i special = _mm_and_si128(_mm_cmpgt_epi32(low, _mm_set1_epi32(0x0f7fffff)), _mm_set1_epi32(0x7f800000));
    const __m128 rebased = _mm_mul_ps(_mm_castsi128_ps(low), _mm_castsi128_ps(_mm_set1_epi32((127 + 112) << 23)));
    wide[i] = _mm_or_ps(rebased, _mm_castsi128_ps(_mm_or_si128(special, sign)));
  }
  return {wide[0], wide[1]};
}
static inline Vec sqrt(Vec a) { return {_mm_sqrt_ps(a.lo), _mm_sqrt_ps(a.hi)}; }
static inline Vec bit_and(Vec a, Vec b) { return {_mm_and_ps(a.lo, b.lo), _mm_and_ps(a.hi, b.hi)}; }
static inline Vec bit_or(Vec a, Vec b) { return {_mm_or_ps(a.lo, b.lo), _mm_or_ps(a.hi, b.hi)}; }
static inline Vec bit_xor(Vec a, Vec b) { return {_mm_xor_ps(a.lo, b.lo), _mm_xor_ps(a.hi, b.hi)}; }
static inline Mask less(Vec a, Vec b) { return {_mm_cmplt_ps(a.lo, b.lo), _mm_cmplt_ps(a.hi, b.hi)}; }
static inline Mask equal(Vec a, Vec b) { return {_mm_cmpeq_ps(a.lo, b.lo), _mm_cmpeq_ps(a.hi, b.hi)}; }
static inline Vec select(Mask m, Vec yes, Vec no) {
  return {_mm_or_ps(_mm_and_ps(m.lo, yes.lo), _mm_andnot_ps(m.lo, no.lo)), _mm_or_ps(_mm_and_ps(m.hi, yes.hi), _mm_andnot_ps(m.hi, no.hi))};
}
static inline int lanes_of(Mask m) { return _mm_movemask_ps(m.lo) | _mm_movemask_ps(m.hi) << 4; }
// Lane i is on when bit i of `bits` is.
static inline Mask mask_of(uint32_t bits) {
  const __m128i all = _mm_set1_epi32(static_cast<int>(bits)), a = _mm_setr_epi32(1, 2, 4, 8), b = _mm_setr_epi32(16, 32, 64, 128);
  return {_mm_castsi128_ps(_mm_cmpeq_epi32(_mm_and_si128(all, a), a)), _mm_castsi128_ps(_mm_cmpeq_epi32(_mm_and_si128(all, b), b))};
}
// The bit patterns, moved left by 23: the low 8 bits become an exponent.
static inline Vec shift_to_exponent(Vec a) {
  return {_mm_castsi128_ps(_mm_slli_epi32(_mm_castps_si128(a.lo), 23)), _mm_castsi128_ps(_mm_slli_epi32(_mm_castps_si128(a.hi), 23))};
}
// Whole numbers as fp32 of the biased exponents.
static inline Vec exponent_of(Vec a) {
  return {_mm_cvtepi32_ps(_mm_srli_epi32(_mm_castps_si128(a.lo), 23)), _mm_cvtepi32_ps(_mm_srli_epi32(_mm_castps_si128(a.hi), 23))};
}
// Lanes (i, i + 4), then (i, i + 2), then (0, 1): the one tree of every horizontal sum.
static inline float sum_lanes(Vec v) {
  __m128 a = _mm_add_ps(v.lo, v.hi);
  a = _mm_add_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps(a, a, 1)));
}
static inline float max_lanes(Vec v) {
  __m128 a = _mm_max_ps(v.lo, v.hi);
  a = _mm_max_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps(a, a, 1)));
}
static inline uint16_t round_to_bf16(uint32_t x) {
  if ((x & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((x | 0x400000) >> 16);
  return static_cast<uint16_t>((x + 0x7fff + (x >> 16 & 1)) >> 16);
}
static inline uint16_t round_to_f16(uint32_t x) {
  const uint32_t sign = x >> 16 & 0x8000, a = x & 0x7fffffff;
  if (a > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (a >> 13 & 0x3ff));
  if (a >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and above
  if (a < 0x38800000) {  // subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
    float f;
    std::memcpy(&f, &a, 4);
    f += 0.5f;
    uint32_t r;
    std::memcpy(&r, &f, 4);
    return static_cast<uint16_t>(sign | (r - 0x3f000000));
  }
  return static_cast<uint16_t>(sign | (a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13);
}
// Round to nearest even; a NaN stays one.
static inline void store_bf16(uint16_t* p, Vec v) {
  uint32_t x[kLanes];
  std::memcpy(x, &v, sizeof x);
  for (int i = 0; i < kLanes; i++) p[i] = round_to_bf16(x[i]);
}
static inline void store_f16(uint16_t* p, Vec v) {
  uint32_t x[kLanes];
  std::memcpy(x, &v, sizeof x);
  for (int i = 0; i < kLanes; i++) p[i] = round_to_f16(x[i]);
}

#endif

// Asks for a line of memory into the second-level cache.
static inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

}  // namespace kvpact::KVPACT_ISA_NS
