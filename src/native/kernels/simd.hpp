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

#endif

}  // namespace kvpact::KVPACT_ISA_NS
