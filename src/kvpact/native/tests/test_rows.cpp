// Functions and row operators, against libm in double.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "../kernels/math.hpp"
#include "../kernels/rows.hpp"
#include "check.hpp"

namespace isa = kvpact::KVPACT_ISA_NS;
using isa::Vec;

static std::mt19937 rng(11);
static std::vector<float> normals(size_t n, float scale = 1) {
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (auto& v : x) v = scale * normal(rng);
  return x;
}

static float at(Vec (*f)(Vec), float x) {
  float lanes[8];
  isa::store(lanes, f(isa::set1(x)));
  for (float lane : lanes) CHECK(!std::memcmp(&lane, lanes, 4), "lanes of f(%g) differ", double(x));
  return lanes[0];
}

// The largest error over [from, to]: in units of the result's last place, or relative.
static double worst(Vec (*f)(Vec), double (*truth)(double), float from, float to, bool in_ulps) {
  double largest = 0;
  for (int i = 0; i <= 200000; i++) {
    const float x = from + (to - from) * static_cast<float>(i) / 200000;
    const double want = truth(x), got = at(f, x);
    const double unit = in_ulps
                            ? std::nextafter(std::fabs(static_cast<float>(want)), INFINITY) - std::fabs(static_cast<float>(want))
                            : std::fabs(want);
    if (std::fabs(want) < std::numeric_limits<float>::min()) continue;
    largest = std::max(largest, std::fabs(got - want) / unit);
  }
  return largest;
}

static void functions_are_accurate() {
  struct Case {
    const char* name;
    Vec (*f)(Vec);
    double (*truth)(double);
    float from, to;
    bool in_ulps;
    double bound;
  };
  const Case cases[] = {
      {"exp_nonpositive", isa::exp_nonpositive, std::exp, -87.3f, 0, true, 2},
      {"exp", isa::exp, std::exp, -86.6f, 88.7f, true, 2},
      {"exp near 0", isa::exp, std::exp, -1, 1, true, 2},
      {"tanh", isa::tanh, std::tanh, -12, 12, false, 1e-6},
      {"tanh near 0", isa::tanh, std::tanh, -0.7f, 0.7f, false, 1e-6},
      {"erf", isa::erf, std::erf, -5, 5, false, 1e-6},
      {"erf near 0", isa::erf, std::erf, -0.01f, 0.01f, false, 1e-6},
      {"log", isa::log, std::log, 1e-30f, 3e4f, false, 1e-6},
      {"log near 1", isa::log, std::log, 0.5f, 2, false, 1e-6},
  };
  for (const Case& c : cases) {
    const double error = worst(c.f, c.truth, c.from, c.to, c.in_ulps);
    std::printf("%-16s %.3g %s\n", c.name, error, c.in_ulps ? "ulp" : "relative");
    CHECK(error <= c.bound, "%s: %g", c.name, error);
  }
}

static void limits_of_functions_are_exact() {
  const float inf = INFINITY;
  for (auto* f : {+[](Vec x) { return isa::exp(x); }, +[](Vec x) { return isa::exp_nonpositive(x); }}) {
    CHECK(at(f, 0.0f) == 1.0f && at(f, -0.0f) == 1.0f, "exp(0)");
    CHECK(at(f, -inf) == 0.0f && !std::signbit(at(f, -inf)) && at(f, -200) == 0.0f, "exp(-inf)");
    CHECK(std::isnan(at(f, NAN)), "exp(NaN)");
  }
  CHECK(at(isa::exp, inf) == inf && at(isa::exp, 89) == inf && at(isa::exp, 88.7f) < inf, "exp above");
  CHECK(at(isa::tanh, inf) == 1 && at(isa::tanh, -inf) == -1 && at(isa::tanh, 0) == 0 && std::isnan(at(isa::tanh, NAN)), "tanh");
  CHECK(at(isa::erf, 0) == 0 && std::isnan(at(isa::erf, NAN)) && at(isa::log, 1) == 0, "erf, log");
}

static void angles_are_reduced_well() {
  double error = 0;
  for (int i = 0; i <= 400000; i++) {
    const float x = i < 200000 ? static_cast<float>(i) * 0.5f : static_cast<float>(400000 - i) * -1.3e-4f;
    const isa::SinCos got = isa::sin_cos(x);
    error = std::max({error, std::fabs(got.sin - std::sin(double(x))), std::fabs(got.cos - std::cos(double(x)))});
  }
  CHECK(error < 6.1e-8, "%g", error);  // half a unit in the last place of 1
}

static void check_near(const std::vector<float>& got, const std::function<double(size_t)>& want, double bound, const char* what) {
  for (size_t i = 0; i < got.size(); i++)
    CHECK(std::fabs(got[i] - want(i)) <= bound * (1 + std::fabs(want(i))), "%s at %zu: %g, not %g", what, i, double(got[i]),
          want(i));
}

static void norms_are_right_and_depend_on_their_row_alone() {
  for (int64_t width : {1, 5, 8, 31, 32, 40, 64, 576, 579}) {
    const int64_t rows = 3, stride = width + 3;
    const size_t w = size_t(width), s = size_t(stride);
    std::vector<float> x = normals(3 * s, 2), weight = normals(w), bias = normals(w), rms(3 * w), layer(3 * w), one(w);
    for (size_t r = 0; r < 3; r++)
      for (size_t i = w; i < s; i++) x[r * s + i] = NAN;  // between rows
    isa::rms_norm(x.data(), stride, weight.data(), 1e-5f, rows, width, rms.data(), width);
    isa::layer_norm(x.data(), stride, weight.data(), bias.data(), 1e-5f, rows, width, layer.data(), width);
    std::vector<double> mean(3), squares(3), var(3);
    for (size_t r = 0; r < 3; r++) {
      for (size_t i = 0; i < w; i++) mean[r] += x[r * s + i] / double(w), squares[r] += std::pow(x[r * s + i], 2.0) / double(w);
      for (size_t i = 0; i < w; i++) var[r] += std::pow(x[r * s + i] - mean[r], 2.0) / double(w);
    }
    check_near(
        rms, [&](size_t k) { return x[k / w * s + k % w] / std::sqrt(squares[k / w] + 1e-5f) * weight[k % w]; }, 1e-6, "rms_norm");
    if (width > 1)
      check_near(
          layer,
          [&](size_t k) {
            return (x[k / w * s + k % w] - mean[k / w]) / std::sqrt(var[k / w] + 1e-5f) * weight[k % w] + bias[k % w];
          },
          4e-6, "layer_norm");
    std::vector<float> shifted(w + 1);  // another alignment, alone, in place
    std::copy(x.begin() + static_cast<long>(s), x.begin() + static_cast<long>(s + w), shifted.begin() + 1);
    isa::rms_norm(shifted.data() + 1, width, weight.data(), 1e-5f, 1, width, shifted.data() + 1, width);
    CHECK(!std::memcmp(shifted.data() + 1, rms.data() + w, w * 4), "rms_norm, width %ld", width);
    isa::layer_norm(x.data() + 2 * s, stride, weight.data(), bias.data(), 1e-5f, 1, width, one.data(), width);
    CHECK(!std::memcmp(one.data(), layer.data() + 2 * w, w * 4), "layer_norm, width %ld", width);
  }
}

static void rotation_follows_hugging_face() {
  for (int64_t rotary : {16, 24, 8}) {
    const int64_t heads = 3, dim = 24, half = rotary / 2, rows = 2, first = 99990;
    std::vector<float> frequency(half), cos(half * 20), sin(half * 20);
    for (int64_t i = 0; i < half; i++)
      frequency[size_t(i)] = static_cast<float>(std::pow(10000.0, -2.0 * double(i) / double(rotary)));
    isa::rotary_table(frequency.data(), half, first, 20, 1.0f, cos.data(), sin.data());
    std::vector<float> x = normals(size_t(rows * heads * dim)), y = x;
    const std::vector<int64_t> positions = {7, 19};
    isa::rotate(y.data(), heads * dim, heads, dim, rotary, cos.data(), sin.data(), positions.data(), rows);
    check_near(
        y,
        [&](size_t k) {
          const int64_t d = static_cast<int64_t>(k) % dim, row = static_cast<int64_t>(k) / (heads * dim);
          if (d >= rotary) return double(x[k]);
          const float angle = static_cast<float>(first + positions[size_t(row)]) * frequency[size_t(d % half)];
          const double turned = d < half ? -x[k + size_t(half)] : x[k - size_t(half)];
          return x[k] * std::cos(double(angle)) + turned * std::sin(double(angle));
        },
        4e-7, "rotate");
  }
}

static void activations_are_right() {
  const std::vector<float> gate = normals(3 * 37, 3), up = normals(3 * 37);
  std::vector<float> out(3 * 37), alone(37);
  const std::function<double(double)> truths[] = {
      [](double x) { return x / (1 + std::exp(-x)); },
      [](double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); },
      [](double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); },
  };
  for (int kind = 0; kind < 3; kind++) {
    isa::activate(static_cast<kvpact::Activation>(kind), gate.data(), up.data(), 37, 3, 37, out.data(), 37);
    check_near(out, [&](size_t i) { return truths[kind](gate[i]) * up[i]; }, 2e-6, "activation");
    isa::activate(static_cast<kvpact::Activation>(kind), gate.data() + 37, up.data() + 37, 37, 1, 37, alone.data(), 37);
    CHECK(!std::memcmp(alone.data(), out.data() + 37, 37 * 4), "activation %d alone", kind);
    isa::activate(static_cast<kvpact::Activation>(kind), gate.data(), nullptr, 37, 3, 37, out.data(), 37);
    check_near(out, [&](size_t i) { return truths[kind](gate[i]); }, 2e-6, "activation without up");
  }
  const float far[] = {-200, 200, -88.5f};
  float got[3];
  isa::activate(kvpact::Activation::silu, far, nullptr, 3, 1, 3, got, 3);
  CHECK(got[0] == 0 && got[1] == 200 && std::fabs(got[2]) < 1e-30f, "silu far out: %g %g %g", double(got[0]), double(got[1]),
        double(got[2]));
}

static void rows_are_gathered_and_added() {
  const std::vector<float> table = normals(5 * 13), other = normals(26);
  const std::vector<int64_t> ids = {4, 0};
  std::vector<float> out(26);
  isa::embed(table.data(), kvpact::DType::f32, ids.data(), 2, 13, out.data());
  check_near(out, [&](size_t i) { return table[size_t(ids[i / 13]) * 13 + i % 13]; }, 0, "embed");
  // every number that bf16 and fp16 have is widened exactly
  for (auto dtype : {kvpact::DType::bf16, kvpact::DType::f16}) {
    std::vector<uint16_t> half(65536);
    for (size_t i = 0; i < half.size(); i++) half[i] = static_cast<uint16_t>(i);
    std::vector<float> wide(65536);
    const int64_t row = 0;
    isa::embed(half.data(), dtype, &row, 1, 65536, wide.data());
    for (size_t i = 0; i < half.size(); i++) {
      const bool bf16 = dtype == kvpact::DType::bf16;
      const int bits = bf16 ? 7 : 10, bias = bf16 ? 127 : 15, exponent = int(i >> bits & (bf16 ? 0xff : 0x1f));
      const double rest = double(i & ((1u << bits) - 1)) / (1 << bits), sign = i >> 15 ? -1 : 1;
      const bool special = exponent == (bf16 ? 0xff : 0x1f);
      const double want = special ? (rest != 0 ? NAN : sign * INFINITY)
                                  : sign * std::ldexp(exponent ? 1 + rest : rest, (exponent ? exponent : 1) - bias);
      CHECK(std::isnan(want) ? std::isnan(wide[i]) : wide[i] == want && std::signbit(wide[i]) == std::signbit(want),
            "dtype %d bits %zx", int(dtype), i);
    }
  }
  std::vector<float> sum = out;
  isa::add_rows(sum.data(), other.data(), 26, sum.data());
  check_near(sum, [&](size_t i) { return double(out[i] + other[i]); }, 0, "add_rows");
}

int main() {
  functions_are_accurate();
  limits_of_functions_are_exact();
  angles_are_reduced_well();
  norms_are_right_and_depend_on_their_row_alone();
  rotation_follows_hugging_face();
  activations_are_right();
  rows_are_gathered_and_added();
  std::puts("rows: ok");
}
