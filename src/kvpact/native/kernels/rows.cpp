#include "rows.hpp"

#include "math.hpp"

namespace kvpact::KVPACT_ISA_NS {
namespace {

constexpr int kSums = 4;  // running vectors of a row's sum: position i goes to vector i / 8 % 4, lane i % 8

// The first n < 8 numbers of p, behind them +0: a tail runs the vector body on padded lanes.
Vec load_tail(const float* p, int64_t n) {
  alignas(32) float lanes[kLanes] = {};
  memcpy(lanes, p, static_cast<size_t>(n) * sizeof(float));
  return load(lanes);
}

void store_tail(float* p, Vec v, int64_t n) {
  alignas(32) float lanes[kLanes];
  store(lanes, v);
  memcpy(p, lanes, static_cast<size_t>(n) * sizeof(float));
}

// to[i] = f(i), eight at a time; f gets the index and how to load.
template <class F>
void map_row(int64_t width, float* to, F&& f) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) store(to + i, f([i](const float* p) { return load(p + i); }));
  if (i < width) store_tail(to + i, f([i, width](const float* p) { return load_tail(p + i, width - i); }), width - i);
}

// The sum of f(x) over a row. f(0 behind the end) must not count: `tail` masks it.
template <class F>
float sum_row(const float* x, int64_t width, F&& f) {
  Vec sum[kSums] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + kSums * kLanes <= width; i += kSums * kLanes)
    for (int k = 0; k < kSums; k++) sum[k] = f(load(x + i + k * kLanes), sum[k]);
  for (int k = 0; i < width; k++, i += kLanes) {
    if (i + kLanes <= width) {
      sum[k] = f(load(x + i), sum[k]);
    } else {
      const Mask inside = mask_of((1u << (width - i)) - 1);
      sum[k] = select(inside, f(load_tail(x + i, width - i), sum[k]), sum[k]);
    }
  }
  return sum_lanes(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
}

float inverse_root(float x) {
  alignas(32) float lanes[kLanes];
  store(lanes, div(set1(1.0f), sqrt(set1(x))));
  return lanes[0];
}

Vec silu(Vec x) { return div(x, add(set1(1.0f), exp(negate(x)))); }

Vec gelu(Vec x) { return mul(mul(set1(0.5f), x), add(set1(1.0f), erf(mul(x, set1(0.70710678118654752f))))); }

// Hendrycks and Gimpel 2016: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
Vec gelu_tanh(Vec x) {
  const Vec inner = mul(set1(0.79788456080286536f), fma(mul(mul(x, x), x), set1(0.044715f), x));
  return mul(mul(set1(0.5f), x), add(set1(1.0f), tanh(inner)));
}

template <class F>
void activate_rows(F&& f, const float* gate, const float* up, int64_t stride, int64_t rows, int64_t width, float* out, int64_t out_stride) {
  for (int64_t r = 0; r < rows; r++) {
    const float* g = gate + r * stride;
    if (up) {
      const float* u = up + r * stride;
      map_row(width, out + r * out_stride, [&](auto at) { return mul(f(at(g)), at(u)); });
    } else {
      map_row(width, out + r * out_stride, [&](auto at) { return f(at(g)); });
    }
  }
}

template <class T>
void widen_row(const T* from, int64_t width, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) store(to + i, load(from + i));
  for (; i < width; i++) to[i] = widen(from[i]);
}

}  // namespace

void embed(const void* table, DType dtype, const int64_t* ids, int64_t rows, int64_t width, float* out) {
  for (int64_t r = 0; r < rows; r++, out += width) {
    const int64_t from = ids[r] * width;
    switch (dtype) {
      case DType::f32: memcpy(out, static_cast<const float*>(table) + from, static_cast<size_t>(width) * sizeof(float)); break;
      case DType::bf16: widen_row(static_cast<const bf16_t*>(table) + from, width, out); break;
      case DType::f16: widen_row(static_cast<const f16_t*>(table) + from, width, out); break;
    }
  }
}

void rms_norm(const float* x, int64_t stride, const float* weight, float eps, int64_t rows, int64_t width, float* out, int64_t out_stride) {
  for (int64_t r = 0; r < rows; r++, x += stride, out += out_stride) {
    const float squares = sum_row(x, width, [](Vec v, Vec sum) { return fma(v, v, sum); });
    const Vec inverse = set1(inverse_root(squares / static_cast<float>(width) + eps));
    map_row(width, out, [&](auto at) { return mul(mul(at(x), inverse), at(weight)); });
  }
}

void layer_norm(const float* x, int64_t stride, const float* weight, const float* bias, float eps, int64_t rows, int64_t width, float* out,
                int64_t out_stride) {
  for (int64_t r = 0; r < rows; r++, x += stride, out += out_stride) {
    const Vec mean = set1(sum_row(x, width, [](Vec v, Vec sum) { return add(sum, v); }) / static_cast<float>(width));
    const float squares = sum_row(x, width, [mean](Vec v, Vec sum) { return fma(sub(v, mean), sub(v, mean), sum); });
    const Vec inverse = set1(inverse_root(squares / static_cast<float>(width) + eps));
    if (bias)
      map_row(width, out, [&](auto at) { return fma(mul(sub(at(x), mean), inverse), at(weight), at(bias)); });
    else
      map_row(width, out, [&](auto at) { return mul(mul(sub(at(x), mean), inverse), at(weight)); });
  }
}

void rotary_table(const float* inverse_frequency, int64_t half, int64_t first_position, int64_t num_positions, float attention_factor,
                  float* cos, float* sin) {
  for (int64_t p = 0; p < num_positions; p++)
    for (int64_t i = 0; i < half; i++) {
      const SinCos of = sin_cos(static_cast<float>(first_position + p) * inverse_frequency[i]);
      cos[p * half + i] = of.cos * attention_factor;
      sin[p * half + i] = of.sin * attention_factor;
    }
}

void rotate(float* x, int64_t stride, int64_t heads, int64_t head_dim, int64_t rotary_dim, const float* cos, const float* sin,
            const int64_t* positions, int64_t rows) {
  const int64_t half = rotary_dim / 2;
  for (int64_t r = 0; r < rows; r++) {
    const float *c = cos + positions[r] * half, *s = sin + positions[r] * half;
    for (int64_t h = 0; h < heads; h++) {
      float *a = x + r * stride + h * head_dim, *b = a + half;
      // Three roundings, as Hugging Face has them: no FMA here.
      const auto turn = [](Vec p, Vec q, Vec co, Vec si, Vec& first, Vec& second) {
        first = sub(mul(p, co), mul(q, si));
        second = add(mul(q, co), mul(p, si));
      };
      Vec first, second;
      int64_t i = 0;
      for (; i + kLanes <= half; i += kLanes) {
        turn(load(a + i), load(b + i), load(c + i), load(s + i), first, second);
        store(a + i, first), store(b + i, second);
      }
      if (const int64_t n = half - i) {
        turn(load_tail(a + i, n), load_tail(b + i, n), load_tail(c + i, n), load_tail(s + i, n), first, second);
        store_tail(a + i, first, n), store_tail(b + i, second, n);
      }
    }
  }
}

void activate(Activation kind, const float* gate, const float* up, int64_t stride, int64_t rows, int64_t width, float* out,
              int64_t out_stride) {
  switch (kind) {
    case Activation::silu: return activate_rows(silu, gate, up, stride, rows, width, out, out_stride);
    case Activation::gelu: return activate_rows(gelu, gate, up, stride, rows, width, out, out_stride);
    case Activation::gelu_tanh: return activate_rows(gelu_tanh, gate, up, stride, rows, width, out, out_stride);
  }
}

void add_rows(const float* a, const float* b, int64_t count, float* out) {
  map_row(count, out, [&](auto at) { return add(at(a), at(b)); });
}

}  // namespace kvpact::KVPACT_ISA_NS
