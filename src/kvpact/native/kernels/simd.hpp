// Eight lanes of fp32, whatever the instruction set: the one vector type that kernels are written in.
// Each kernel source is compiled once per instruction set, with KVPACT_ISA_NS naming the build's namespace.
// Nothing here or in a kernel may come from the standard library's templates: the linker merges their instances
// across builds, and one that was compiled for AVX2 would then run on a machine without it.
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
#if KVPACT_AVX2 && defined(__AVX512F__) && defined(__AVX512VL__)
#define KVPACT_AVX512 1
#else
#define KVPACT_AVX512 0
#endif

// GCC leaves short loops over an array of vectors rolled, and the array in memory, unless it is told otherwise.
#if defined(__clang__)
#define KVPACT_UNROLL _Pragma("unroll")
#else
#define KVPACT_UNROLL _Pragma("GCC unroll 32")
#endif
#define KVPACT_INLINE static inline __attribute__((always_inline))
#define KVPACT_NOINLINE __attribute__((noinline))

namespace kvpact::KVPACT_ISA_NS {

constexpr int kLanes = 8;

// What is stored in 16 bits; the type says how it is widened. Widening to fp32 is exact.
struct bf16_t {
  uint16_t bits;
};
struct f16_t {
  uint16_t bits;
};

static inline float as_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
static inline uint32_t as_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

static inline float widen(float x) { return x; }
static inline float widen(bf16_t h) { return as_float(static_cast<uint32_t>(h.bits) << 16); }
static inline bf16_t narrow_bf16(float x) {  // to nearest, ties to even; a NaN stays one
  uint32_t u = as_bits(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

// The cache line that holds p will be read soon. Any address is allowed, mapped or not.
KVPACT_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
KVPACT_INLINE void prefetch_l2(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

#if KVPACT_AVX2

using Vec = __m256;
// The rest hold a broadcast and what is multiplied with it. AVX-512 has 32 registers instead of 16; eight lanes stay, for tiles of
// sixteen lanes were no faster where the processor halves them, and heads of eight would need padding.
constexpr int kAccumulators = KVPACT_AVX512 ? 24 : 12;

KVPACT_INLINE Vec zero() { return _mm256_setzero_ps(); }
KVPACT_INLINE Vec set1(float x) { return _mm256_set1_ps(x); }
KVPACT_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
KVPACT_INLINE void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
KVPACT_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
KVPACT_INLINE Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
KVPACT_INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
KVPACT_INLINE Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
KVPACT_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
KVPACT_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
// a * b + c, rounded once. A build without FMA rounds twice: bits are promised within one build.
KVPACT_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
KVPACT_INLINE float fma(float a, float b, float c) {
  return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}

KVPACT_INLINE Vec load(const bf16_t* p) {
  __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
KVPACT_INLINE Vec load(const f16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
KVPACT_INLINE void store(bf16_t* p, Vec v) {
  __m256i u = _mm256_castps_si256(v);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
  __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x88);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(both));
}
KVPACT_INLINE void store(f16_t* p, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline float widen(f16_t h) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h.bits))); }
static inline f16_t narrow_f16(float x) {
  __m128i h = _mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return {static_cast<uint16_t>(_mm_extract_epi16(h, 0))};
}
// Sixteen bf16 of which lane j of `a` and lane j of `b` lie side by side: two operations, no shuffle.
KVPACT_INLINE void load_interleaved(const bf16_t* p, Vec& a, Vec& b) {
  __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  a = _mm256_castsi256_ps(_mm256_slli_epi32(h, 16));
  b = _mm256_castsi256_ps(_mm256_and_si256(h, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

using Mask = __m256;  // each lane all ones or all zeros

KVPACT_INLINE Vec sqrt(Vec a) { return _mm256_sqrt_ps(a); }
KVPACT_INLINE Vec bit_and(Vec a, Vec b) { return _mm256_and_ps(a, b); }
KVPACT_INLINE Vec bit_or(Vec a, Vec b) { return _mm256_or_ps(a, b); }
KVPACT_INLINE Vec bit_xor(Vec a, Vec b) { return _mm256_xor_ps(a, b); }
KVPACT_INLINE Mask less(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
KVPACT_INLINE Mask equal(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
KVPACT_INLINE Vec select(Mask m, Vec yes, Vec no) { return _mm256_blendv_ps(no, yes, m); }
KVPACT_INLINE int lanes_of(Mask m) { return _mm256_movemask_ps(m); }
// Lane i is on when bit i of `bits` is.
KVPACT_INLINE Mask mask_of(uint32_t bits) {
  const __m256i one = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), one), one));
}
// The bit patterns, moved left by 23: the low 8 bits become an exponent.
KVPACT_INLINE Vec shift_to_exponent(Vec a) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 23)); }
// Whole numbers as fp32 of the biased exponents.
KVPACT_INLINE Vec exponent_of(Vec a) { return _mm256_cvtepi32_ps(_mm256_srli_epi32(_mm256_castps_si256(a), 23)); }
// Lanes (i, i + 4), then (i, i + 2), then (0, 1): the one tree of every horizontal sum.
KVPACT_INLINE float sum_lanes(Vec v) {
  __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  a = _mm_add_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps(a, a, 1)));
}
KVPACT_INLINE float max_lanes(Vec v) {
  __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  a = _mm_max_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps(a, a, 1)));
}

#else

struct Vec {
  __m128 lo, hi;
};
constexpr int kAccumulators = 6;  // each is two of the 16 registers

KVPACT_INLINE Vec zero() { return {_mm_setzero_ps(), _mm_setzero_ps()}; }
KVPACT_INLINE Vec set1(float x) { return {_mm_set1_ps(x), _mm_set1_ps(x)}; }
KVPACT_INLINE Vec load(const float* p) { return {_mm_loadu_ps(p), _mm_loadu_ps(p + 4)}; }
KVPACT_INLINE void store(float* p, Vec v) {
  _mm_storeu_ps(p, v.lo);
  _mm_storeu_ps(p + 4, v.hi);
}
KVPACT_INLINE Vec add(Vec a, Vec b) { return {_mm_add_ps(a.lo, b.lo), _mm_add_ps(a.hi, b.hi)}; }
KVPACT_INLINE Vec sub(Vec a, Vec b) { return {_mm_sub_ps(a.lo, b.lo), _mm_sub_ps(a.hi, b.hi)}; }
KVPACT_INLINE Vec mul(Vec a, Vec b) { return {_mm_mul_ps(a.lo, b.lo), _mm_mul_ps(a.hi, b.hi)}; }
KVPACT_INLINE Vec div(Vec a, Vec b) { return {_mm_div_ps(a.lo, b.lo), _mm_div_ps(a.hi, b.hi)}; }
KVPACT_INLINE Vec max(Vec a, Vec b) { return {_mm_max_ps(a.lo, b.lo), _mm_max_ps(a.hi, b.hi)}; }
KVPACT_INLINE Vec min(Vec a, Vec b) { return {_mm_min_ps(a.lo, b.lo), _mm_min_ps(a.hi, b.hi)}; }
KVPACT_INLINE Vec fma(Vec a, Vec b, Vec c) { return add(mul(a, b), c); }
KVPACT_INLINE float fma(float a, float b, float c) { return a * b + c; }

KVPACT_INLINE Vec load(const bf16_t* p) {
  __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  __m128i none = _mm_setzero_si128();
  return {_mm_castsi128_ps(_mm_unpacklo_epi16(none, h)), _mm_castsi128_ps(_mm_unpackhi_epi16(none, h))};
}
KVPACT_INLINE void store(bf16_t* p, Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int i = 0; i < kLanes; i++) p[i] = narrow_bf16(lanes[i]);
}
KVPACT_INLINE void load_interleaved(const bf16_t* p, Vec& a, Vec& b) {
  const __m128i* q = reinterpret_cast<const __m128i*>(p);
  const __m128i high = _mm_set1_epi32(static_cast<int>(0xffff0000u));
  __m128i h0 = _mm_loadu_si128(q), h1 = _mm_loadu_si128(q + 1);
  a = {_mm_castsi128_ps(_mm_slli_epi32(h0, 16)), _mm_castsi128_ps(_mm_slli_epi32(h1, 16))};
  b = {_mm_castsi128_ps(_mm_and_si128(h0, high)), _mm_castsi128_ps(_mm_and_si128(h1, high))};
}
// Four fp16, each in the low half of a lane. The bits read as fp32 are too small by 2^112, subnormals included;
// the product puts that right exactly. Infinity and NaN come out at 2^16 or more and get the fp32 exponent.
KVPACT_INLINE __m128 widen_f16(__m128i h) {
  __m128i sign = _mm_slli_epi32(_mm_and_si128(h, _mm_set1_epi32(0x8000)), 16);
  __m128i rest = _mm_and_si128(h, _mm_set1_epi32(0x7fff));
  __m128 x = _mm_mul_ps(_mm_castsi128_ps(_mm_slli_epi32(rest, 13)), _mm_set1_ps(5.192296858534828e+33f));
  __m128i special = _mm_and_si128(_mm_cmpgt_epi32(rest, _mm_set1_epi32(0x7bff)), _mm_set1_epi32(0x7f800000));
  return _mm_castsi128_ps(_mm_or_si128(_mm_or_si128(_mm_castps_si128(x), special), sign));
}
KVPACT_INLINE Vec load(const f16_t* p) {
  __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  __m128i none = _mm_setzero_si128();
  return {widen_f16(_mm_unpacklo_epi16(h, none)), widen_f16(_mm_unpackhi_epi16(h, none))};
}
static inline float widen(f16_t h) { return _mm_cvtss_f32(widen_f16(_mm_cvtsi32_si128(h.bits))); }
static inline f16_t narrow_f16(float x) {  // to nearest, ties to even, as the instruction of F16C does it
  uint32_t u = as_bits(x), sign = (u >> 16) & 0x8000u, rest = u & 0x7fffffffu;
  if (rest > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u | ((rest >> 13) & 0x1ffu))};
  if (rest >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // 65520 and above
  if (rest < 0x38800000u) {  // below 2^-14: the sum with 0.5 leaves a multiple of 2^-24 in the low bits
    return {static_cast<uint16_t>(sign | (as_bits(as_float(rest) + 0.5f) - 0x3f000000u))};
  }
  return {static_cast<uint16_t>(sign | ((rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13))};
}
KVPACT_INLINE void store(f16_t* p, Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int i = 0; i < kLanes; i++) p[i] = narrow_f16(lanes[i]);
}

using Mask = Vec;

KVPACT_INLINE Vec sqrt(Vec a) { return {_mm_sqrt_ps(a.lo), _mm_sqrt_ps(a.hi)}; }
KVPACT_INLINE Vec bit_and(Vec a, Vec b) { return {_mm_and_ps(a.lo, b.lo), _mm_and_ps(a.hi, b.hi)}; }
KVPACT_INLINE Vec bit_or(Vec a, Vec b) { return {_mm_or_ps(a.lo, b.lo), _mm_or_ps(a.hi, b.hi)}; }
KVPACT_INLINE Vec bit_xor(Vec a, Vec b) { return {_mm_xor_ps(a.lo, b.lo), _mm_xor_ps(a.hi, b.hi)}; }
KVPACT_INLINE Mask less(Vec a, Vec b) { return {_mm_cmplt_ps(a.lo, b.lo), _mm_cmplt_ps(a.hi, b.hi)}; }
KVPACT_INLINE Mask equal(Vec a, Vec b) { return {_mm_cmpeq_ps(a.lo, b.lo), _mm_cmpeq_ps(a.hi, b.hi)}; }
KVPACT_INLINE Vec select(Mask m, Vec yes, Vec no) {
  return {_mm_or_ps(_mm_and_ps(m.lo, yes.lo), _mm_andnot_ps(m.lo, no.lo)), _mm_or_ps(_mm_and_ps(m.hi, yes.hi), _mm_andnot_ps(m.hi, no.hi))};
}
KVPACT_INLINE int lanes_of(Mask m) { return _mm_movemask_ps(m.lo) | _mm_movemask_ps(m.hi) << 4; }
// Lane i is on when bit i of `bits` is.
KVPACT_INLINE Mask mask_of(uint32_t bits) {
  const __m128i all = _mm_set1_epi32(static_cast<int>(bits)), a = _mm_setr_epi32(1, 2, 4, 8), b = _mm_setr_epi32(16, 32, 64, 128);
  return {_mm_castsi128_ps(_mm_cmpeq_epi32(_mm_and_si128(all, a), a)), _mm_castsi128_ps(_mm_cmpeq_epi32(_mm_and_si128(all, b), b))};
}
// The bit patterns, moved left by 23: the low 8 bits become an exponent.
KVPACT_INLINE Vec shift_to_exponent(Vec a) {
  return {_mm_castsi128_ps(_mm_slli_epi32(_mm_castps_si128(a.lo), 23)), _mm_castsi128_ps(_mm_slli_epi32(_mm_castps_si128(a.hi), 23))};
}
// Whole numbers as fp32 of the biased exponents.
KVPACT_INLINE Vec exponent_of(Vec a) {
  return {_mm_cvtepi32_ps(_mm_srli_epi32(_mm_castps_si128(a.lo), 23)), _mm_cvtepi32_ps(_mm_srli_epi32(_mm_castps_si128(a.hi), 23))};
}
// Lanes (i, i + 4), then (i, i + 2), then (0, 1): the one tree of every horizontal sum.
KVPACT_INLINE float sum_lanes(Vec v) {
  __m128 a = _mm_add_ps(v.lo, v.hi);
  a = _mm_add_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps(a, a, 1)));
}
KVPACT_INLINE float max_lanes(Vec v) {
  __m128 a = _mm_max_ps(v.lo, v.hi);
  a = _mm_max_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps(a, a, 1)));
}

#endif

}  // namespace kvpact::KVPACT_ISA_NS
