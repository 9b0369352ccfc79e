// A row of a linear layer has the same bits whatever the number of rows, the panels asked for and the threads, and it is
// right within the rounding of its sum.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "../dispatch.hpp"
#include "../linear_parallel.hpp"
#include "../memory.hpp"
#include "check.hpp"

using namespace kvpact;

namespace {

const char* name_of(DType dtype) { return dtype == DType::f32 ? "f32" : dtype == DType::bf16 ? "bf16" : "f16"; }

class Random {
 public:
  float next() {  // in [-1, 1)
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<float>(static_cast<int64_t>(state_) >> 40) / 8388608.0f;
  }

 private:
  uint64_t state_ = 1;
};

// Values that bf16 and fp16 both hold exactly: the bits and the value of each weight.
uint16_t stored(float value, DType dtype) {
  uint32_t u;
  std::memcpy(&u, &value, 4);
  if (dtype == DType::bf16) return static_cast<uint16_t>(u >> 16);
  if (value == 0.0f) return 0;
  const uint32_t sign = (u >> 16) & 0x8000u, exponent = (u >> 23) & 0xffu, mantissa = u & 0x7fffffu;
  return static_cast<uint16_t>(sign | ((exponent - 112u) << 10) | (mantissa >> 13));
}

constexpr float kGuard = 12345.0f;

// A layer, its input and what is added to it. Rows of y and x are longer than they need be, to see that nothing else is touched.
struct Layer {
  Layer(const Kernels& build, int64_t outputs, int64_t inputs, DType dtype, int64_t max_rows)
      : kernels(build), num_out(outputs), num_in(inputs), ldx(num_in + 3), ldy(num_out + 5),
        packed(static_cast<size_t>(kernels.linear_packed_bytes(num_out, num_in, dtype))) {
    Random random;
    weight.resize(static_cast<size_t>(num_out * num_in));
    for (float& w : weight) w = std::round(random.next() * 64.0f) / 128.0f;
    x.resize(static_cast<size_t>(max_rows * ldx));
    for (float& v : x) v = random.next();
    bias.resize(static_cast<size_t>(num_out));
    for (float& v : bias) v = random.next();
    residual.resize(static_cast<size_t>(max_rows * num_out));
    for (float& v : residual) v = random.next();
    std::vector<uint16_t> narrow(weight.size());
    for (size_t i = 0; i < weight.size(); i++) narrow[i] = stored(weight[i], dtype);
    const void* source = dtype == DType::f32 ? static_cast<const void*>(weight.data()) : narrow.data();
    ThreadPool pool(2);
    linear_pack(pool, kernels, {source, num_in, num_out, num_in, dtype, 0, num_panels(num_out), packed.data()});
    call = {x.data(), ldx, 0, {packed.data(), num_out, num_in, dtype}, 0, num_panels(num_out), nullptr, ldy, nullptr, nullptr, num_out};
  }

  std::vector<float> run(ThreadPool& pool, int64_t rows, bool added) {
    std::vector<float> y(static_cast<size_t>(rows * ldy), kGuard);
    linear(pool, kernels, ready(rows, y, added));
    return y;
  }

  // The same rows from one call for each run of `width` panels.
  std::vector<float> run_split(int64_t rows, int64_t width, bool added) {
    std::vector<float> y(static_cast<size_t>(rows * ldy), kGuard);
    for (int64_t p = 0; p < num_panels(num_out); p += width) {
      LinearCall part = ready(rows, y, added);
      part.panel_begin = p;
      part.panel_end = std::min(p + width, num_panels(num_out));
      kernels.linear(part);
    }
    return y;
  }

  LinearCall ready(int64_t rows, std::vector<float>& y, bool added) const {
    LinearCall c = call;
    c.rows = rows;
    c.y = y.data();
    if (added) c.bias = bias.data(), c.residual = residual.data();
    return c;
  }

  const Kernels& kernels;
  int64_t num_out, num_in, ldx, ldy;
  PageMemory packed;
  std::vector<float> weight, x, bias, residual;
  LinearCall call;
};

void check_value(const Layer& layer, const std::vector<float>& y, int64_t rows, bool added, const std::string& where) {
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t o = 0; o < layer.ldy; o++) {
      const float got = y[r * layer.ldy + o];
      if (o >= layer.num_out) {
        CHECK(got == kGuard, "%s: wrote beyond the row's end, row %d", where.c_str(), static_cast<int>(r));
        continue;
      }
      double sum = 0, size = 0;
      for (int64_t k = 0; k < layer.num_in; k++) {
        const double product = static_cast<double>(layer.x[r * layer.ldx + k]) * layer.weight[o * layer.num_in + k];
        sum += product;
        size += std::fabs(product);
      }
      if (added) sum += static_cast<double>(layer.bias[o]) + layer.residual[r * layer.num_out + o];
      const double bound = (size + 4) * 1.2e-7 * (2 + std::sqrt(static_cast<double>(layer.num_in)));
      CHECK(std::fabs(got - sum) <= bound, "%s: row %d output %d is %.9g, should be %.9g", where.c_str(), static_cast<int>(r),
            static_cast<int>(o), got, sum);
    }
  }
}

void check_layer(const Kernels& kernels, int64_t num_out, int64_t num_in, DType dtype) {
  const std::string where = std::string(kernels.isa) + " " + name_of(dtype) + " " + std::to_string(num_out) + "x" + std::to_string(num_in);
  constexpr int64_t kMaxRows = 512;
  Layer layer(kernels, num_out, num_in, dtype, kMaxRows);
  ThreadPool one(1), two(2);
  for (bool added : {false, true}) {
    const std::vector<float> all = layer.run(one, kMaxRows, added);
    check_value(layer, all, 7, added, where);
    auto same = [&](const std::vector<float>& y) { return std::memcmp(y.data(), all.data(), y.size() * sizeof(float)) == 0; };
    for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 17, 31, 64, 97, 192, 512}) {
      CHECK(same(layer.run(one, rows, added)), "%s: %d rows on one thread", where.c_str(), static_cast<int>(rows));
      CHECK(same(layer.run(two, rows, added)), "%s: %d rows on two threads", where.c_str(), static_cast<int>(rows));
    }
    for (int64_t width : {1, 2, 3, 5, 9}) {
      for (int64_t rows : {1, 2, 3, 8, 64}) {
        CHECK(same(layer.run_split(rows, width, added)), "%s: %d rows, split into %d panels", where.c_str(), static_cast<int>(rows),
              static_cast<int>(width));
      }
    }
  }
}

// NaN in one row reaches no other.
void check_company(const Kernels& kernels) {
  Layer layer(kernels, 17, 48, DType::f32, 8);
  ThreadPool one(1);
  const std::vector<float> before = layer.run(one, 8, false);
  for (int64_t k = 0; k < layer.num_in; k++) layer.x[3 * layer.ldx + k] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> after = layer.run(one, 8, false);
  for (int64_t r = 0; r < 8; r++) {
    const bool equal = std::memcmp(&before[r * layer.ldy], &after[r * layer.ldy], layer.ldy * sizeof(float)) == 0;
    CHECK(equal == (r != 3), "%s: NaN in row 3, row %d", kernels.isa, static_cast<int>(r));
  }
}

double value_of(uint16_t bits, DType dtype) {
  const int width = dtype == DType::bf16 ? 7 : 10, special = dtype == DType::bf16 ? 255 : 31;  // of the mantissa; the last exponent
  const int exponent = bits >> width & special, mantissa = bits & ((1 << width) - 1);
  double size = std::ldexp(mantissa + (exponent ? 1 << width : 0), std::max(exponent, 1) - special / 2 - width);
  if (exponent == special) size = mantissa ? NAN : INFINITY;
  return bits & 0x8000 ? -size : size;
}

// Every fp16 and bf16 is widened exactly: with an input of 1, the output is the weight.
void check_widening(const Kernels& kernels, DType dtype) {
  constexpr int64_t kCount = 65536;
  std::vector<uint16_t> weight(kCount);
  for (int64_t i = 0; i < kCount; i++) weight[i] = static_cast<uint16_t>(i);
  PageMemory packed(static_cast<size_t>(kernels.linear_packed_bytes(kCount, 1, dtype)));
  kernels.linear_pack({weight.data(), 1, kCount, 1, dtype, 0, num_panels(kCount), packed.data()});
  std::vector<float> y(kCount);
  const float one = 1.0f;
  kernels.linear({&one, 1, 1, {packed.data(), kCount, 1, dtype}, 0, num_panels(kCount), y.data(), kCount, nullptr, nullptr, 0});
  for (int64_t i = 0; i < kCount; i++) {
    const double want = value_of(weight[i], dtype);
    CHECK(std::isnan(want) ? std::isnan(y[i]) : y[i] == want, "%s %s: %04x is %.9g, should be %.9g", kernels.isa, name_of(dtype),
          static_cast<unsigned>(i), y[i], want);
  }
}

}  // namespace

int main() {
  std::vector<const Kernels*> builds = {&baseline::table()};
  if (&select_kernels() != builds[0]) builds.push_back(&select_kernels());
  for (const Kernels* kernels : builds) {
    for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (int64_t num_out : {1, 15, 17, 320}) {
        for (int64_t num_in : {1, 7, 48, 255, 257, 576}) check_layer(*kernels, num_out, num_in, dtype);
      }
      check_layer(*kernels, 100, 1601, dtype);  // three blocks of k
    }
    check_company(*kernels);
    check_widening(*kernels, DType::bf16);
    check_widening(*kernels, DType::f16);
  }
  return tests::result("linear");
}
