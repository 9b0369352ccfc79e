// Transcendental functions as polynomials: no libm, so a lane's bits depend on its input and the instruction set alone.
// Polynomials of exp, tanh and log are those of Cephes (S. Moshier), erf is a minimax quotient as in Eigen and XLA.
#pragma once

#include "simd.hpp"

namespace kvpact::KVPACT_ISA_NS {

KVPACT_INLINE Vec negate(Vec x) { return bit_xor(x, set1(-0.0f)); }
KVPACT_INLINE Vec absolute(Vec x) { return bit_xor(x, bit_and(x, set1(-0.0f))); }

// exp(f) for |f| <= ln(2) / 2; 1 exactly at 0.
KVPACT_INLINE Vec exp_of_rest(Vec f) {
  Vec p = set1(1.9875691500e-4f);
  p = fma(p, f, set1(1.3981999507e-3f));
  p = fma(p, f, set1(8.3334519073e-3f));
  p = fma(p, f, set1(4.1665795894e-2f));
  p = fma(p, f, set1(1.6666665459e-1f));
  p = fma(p, f, set1(5.0000001201e-1f));
  return add(fma(p, mul(f, f), f), set1(1.0f));
}

// x - r ln 2, the logarithm in two parts: the product with the upper one is exact.
KVPACT_INLINE Vec rest_of(Vec x, Vec r) { return fma(r, set1(2.12194440e-4f), fma(r, set1(-0.693359375f), x)); }

// exp(x) for x <= 0 (what softmax needs): exp(0) = 1, exp(-inf) = +0, a NaN stays one, +0 below -87.7.
// The sum with 1.5 * 2^23 + 127 rounds to the nearest whole number and leaves the biased exponent in the low bits.
KVPACT_INLINE Vec exp_nonpositive(Vec x) {
  const Vec magic = set1(12582912.0f + 127.0f);
  x = max(set1(-88.0f), x);
  const Vec t = add(mul(x, set1(1.44269504f)), magic);
  return mul(exp_of_rest(rest_of(x, sub(t, magic))), shift_to_exponent(t));
}

// exp(x) for every x: as above, and +inf beyond 88.72; +0 below -87 (no subnormal results).
// Scaled by 2^(r - 1) and then by 2, because 2^128 is no fp32.
KVPACT_INLINE Vec exp(Vec x) {
  const Vec magic = set1(12582912.0f + 126.0f);
  x = min(set1(89.0f), max(set1(-88.0f), x));
  const Vec t = add(mul(x, set1(1.44269504f)), magic);
  return mul(mul(exp_of_rest(rest_of(x, sub(t, magic))), shift_to_exponent(max(t, set1(12582912.0f)))), set1(2.0f));
}

KVPACT_INLINE Vec tanh(Vec x) {
  const Vec a = absolute(x), z = mul(x, x);
  Vec p = set1(-5.70498872745e-3f);
  p = fma(p, z, set1(2.06390887954e-2f));
  p = fma(p, z, set1(-5.37397155531e-2f));
  p = fma(p, z, set1(1.33314422036e-1f));
  p = fma(p, z, set1(-3.33332819422e-1f));
  const Vec small = fma(mul(p, z), x, x);
  const Vec large = sub(set1(1.0f), div(set1(2.0f), add(exp(add(a, a)), set1(1.0f))));
  return select(less(a, set1(0.625f)), small, bit_or(large, bit_and(x, set1(-0.0f))));
}

KVPACT_INLINE Vec erf(Vec x) {
  x = min(set1(4.0f), max(set1(-4.0f), x));
  const Vec z = mul(x, x);
  Vec p = set1(-2.72614225801306e-10f);
  p = fma(p, z, set1(2.77068142495902e-08f));
  p = fma(p, z, set1(-2.10102402082508e-06f));
  p = fma(p, z, set1(-5.69250639462346e-05f));
  p = fma(p, z, set1(-7.34990630326855e-04f));
  p = fma(p, z, set1(-2.95459980854025e-03f));
  p = fma(p, z, set1(-1.60960333262415e-02f));
  Vec q = set1(-1.45660718464996e-05f);
  q = fma(q, z, set1(-2.13374055278905e-04f));
  q = fma(q, z, set1(-1.68282697438203e-03f));
  q = fma(q, z, set1(-7.37332916720468e-03f));
  q = fma(q, z, set1(-1.42647390514189e-02f));
  return div(mul(x, p), q);
}

// Natural logarithm of a positive normal number; log(1) = +0.
KVPACT_INLINE Vec log(Vec x) {
  // mantissa in [sqrt(1/2), sqrt(2)), exponent as a whole number
  Vec e = sub(exponent_of(x), set1(126.0f));
  Vec m = bit_or(bit_and(x, set1(as_float(0x007fffff))), set1(0.5f));
  const Mask low = less(m, set1(0.707106781186547524f));
  e = sub(e, bit_and(low, set1(1.0f)));
  m = sub(add(m, bit_and(low, m)), set1(1.0f));
  const Vec z = mul(m, m);
  Vec p = set1(7.0376836292e-2f);
  p = fma(p, m, set1(-1.1514610310e-1f));
  p = fma(p, m, set1(1.1676998740e-1f));
  p = fma(p, m, set1(-1.2420140846e-1f));
  p = fma(p, m, set1(1.4249322787e-1f));
  p = fma(p, m, set1(-1.6668057665e-1f));
  p = fma(p, m, set1(2.0000714765e-1f));
  p = fma(p, m, set1(-2.4999993993e-1f));
  p = fma(p, m, set1(3.3333331174e-1f));
  Vec y = mul(mul(p, m), z);
  y = fma(e, set1(-2.12194440e-4f), y);
  y = fma(z, set1(-0.5f), y);
  return fma(e, set1(0.693359375f), add(m, y));
}

struct SinCos {
  float sin, cos;
};

// sin and cos of an fp32 angle up to 1e5 rad and beyond, computed in fp64 and rounded once (fdlibm's kernels): built once, for tables.
static inline SinCos sin_cos(float angle) {
  const double magic = 6755399441055744.0;  // 1.5 * 2^52: the sum rounds to the nearest whole number
  const double x = angle, t = x * 6.36619772367581382433e-01 + magic, n = t - magic;
  const double r = (x - n * 1.57079632673412561417e+00) - n * 6.07710050650619224932e-11;  // pi/2: 33 bits, then the rest
  const double z = r * r;
  const double sines[] = {-2.50507602534068634195e-08, 2.75573137070700676789e-06, -1.98412698298579493134e-04,
                          8.33333333332248946124e-03, -1.66666666666666324348e-01};
  const double cosines[] = {2.08757232129817482790e-09, -2.75573143513906633035e-07, 2.48015872894767294178e-05,
                            -1.38888888888741095749e-03, 4.16666666666666019037e-02};
  double s = 1.58969099521155010221e-10, c = -1.13596475577881948265e-11;
  for (int i = 0; i < 5; i++) s = s * z + sines[i], c = c * z + cosines[i];
  s = r + r * z * s;
  c = 1.0 - 0.5 * z + z * z * c;
  const int64_t quarter = static_cast<int64_t>(n) & 3;
  const double sine = quarter & 1 ? c : s, cosine = quarter & 1 ? s : c;
  return {static_cast<float>(quarter & 2 ? -sine : sine), static_cast<float>(quarter == 1 || quarter == 2 ? -cosine : cosine)};
}

}  // namespace kvpact::KVPACT_ISA_NS
