// Attention over blocks against double-precision loops over the rule, and its bits against every other way of cutting the work.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "../attention_plan.hpp"
#include "../kernels/attention.hpp"
#include "../kernels/simd.hpp"
#include "check.hpp"

using namespace kvpact;
namespace isa = kvpact::KVPACT_ISA_NS;

static std::mt19937_64 rng(7);
static int64_t pick(int64_t from, int64_t to) { return from + static_cast<int64_t>(rng() % static_cast<uint64_t>(to - from + 1)); }
static float normal() { return std::normal_distribution<float>()(rng); }

static bool visible(const Rule& rule, int64_t q, int64_t k) {
  if (rule.causal && !(k <= q || k < rule.prefix)) return false;
  return !rule.window || q - k < rule.window || k < rule.sinks || k < rule.prefix;
}

// Contexts of all requests, and what each of their positions holds: independent of any storage.
struct Problem {
  int32_t heads, group, dim;
  DType dtype;
  Rule rule;
  float scale, soft_cap;
  std::vector<int64_t> lens, counts;             // keys, and query tokens at the end, of each request
  std::vector<std::vector<float>> keys, values;  // [request][position][head][dim]
  std::vector<float> q;                          // [token][head * group][dim]
  std::vector<int64_t> query_start, positions;
};

static Problem make_problem(int32_t heads, int32_t group, int32_t dim, DType dtype, Rule rule, std::vector<int64_t> lens,
                            std::vector<int64_t> counts, float soft_cap = 0) {
  Problem p{heads, group, dim, dtype, rule, 1 / std::sqrt(static_cast<float>(dim)), soft_cap, lens, counts, {}, {}, {}, {0}, {}};
  for (size_t r = 0; r < lens.size(); r++) {
    std::vector<float> k(size_t(lens[r] * heads * dim)), v(k.size());
    for (auto& x : k) x = normal();
    for (auto& x : v) x = normal();
    p.keys.push_back(k), p.values.push_back(v);
    for (int64_t i = 0; i < counts[r]; i++) p.positions.push_back(lens[r] - counts[r] + i);
    p.query_start.push_back(p.query_start.back() + counts[r]);
  }
  p.q.resize(p.positions.size() * size_t(heads * group * dim));
  for (auto& x : p.q) x = 1.5f * normal();
  return p;
}

enum class Cut { whole, rows_1, rows_3, rows_16, split };

static AttentionPlan cut_of(const AttentionStep& step, const Problem& p, Cut cut) {
  AttentionPlan plan;
  const int64_t requests = static_cast<int64_t>(p.lens.size());
  plan_attention(step, requests, cut == Cut::split ? 1000000 : 1, plan);
  const int64_t tokens = cut == Cut::rows_1 ? 1 : cut == Cut::rows_3 ? 3 : cut == Cut::rows_16 ? 16 : 0;
  if (!tokens) return plan;
  std::vector<AttentionUnit> whole;
  std::swap(whole, plan.units);
  for (AttentionUnit unit : whole)
    for (int64_t end = unit.first_token + unit.num_tokens; unit.first_token < end; unit.first_token += tokens) {
      unit.num_tokens = std::min(tokens, end - unit.first_token);
      plan.units.push_back(unit);
    }
  return plan;
}

// Runs a problem in blocks of a size. Every slot that was not written, and every entry that no query sees, is NaN.
static std::vector<float> run(const Problem& p, int64_t block_size, Cut cut, bool interleaved = false) {
  const int64_t esize = p.dtype == DType::f32 ? 4 : 2, tile = p.dim * block_size;
  int64_t max_blocks = 0, total = 1;
  for (int64_t len : p.lens)
    max_blocks = std::max(max_blocks, (len + block_size - 1) / block_size), total += (len + block_size - 1) / block_size;
  std::vector<unsigned char> memory(size_t(2 * total * p.heads * tile * esize), 0xff);  // all ones: NaN in every dtype
  EntryStorage entries{memory.data(),
                       memory.data() + (interleaved ? tile : total * p.heads * tile) * esize,
                       0,
                       interleaved ? 2 * tile : tile,
                       block_size,
                       total,
                       p.heads,
                       p.dim,
                       p.dtype};
  entries.block_stride = entries.head_stride * p.heads;
  std::vector<int64_t> ids, table(p.lens.size() * size_t(max_blocks), -1000000000);
  for (int64_t i = 1; i < total; i++) ids.push_back(i);
  std::shuffle(ids.begin(), ids.end(), rng);
  for (size_t r = 0, next = 0; r < p.lens.size(); r++) {
    std::vector<int64_t> slots;
    for (int64_t j = 0; j * block_size < p.lens[r]; j++) table[r * size_t(max_blocks) + size_t(j)] = ids[next++];
    std::vector<float> keys = p.keys[r], values = p.values[r];
    for (int64_t k = 0; k < p.lens[r]; k++) {
      bool seen = false;
      for (int64_t i = p.query_start[r]; i < p.query_start[r + 1]; i++) seen |= visible(p.rule, p.positions[size_t(i)], k);
      slots.push_back(seen ? table[r * size_t(max_blocks) + size_t(k / block_size)] * block_size + k % block_size : -1);
    }
    WriteReport report;
    isa::write_entries(entries, keys.data(), values.data(), slots.data(), p.lens[r], &report);
    CHECK(report.num_not_finite == 0 && report.first_bad_slot == -1, "clean rows were reported");
  }
  std::vector<float> out(p.q.size(), NAN);
  const std::vector<Rule> rules(p.lens.size(), p.rule);
  AttentionStep step{p.q.data(),    out.data(),         entries, table.data(), max_blocks, p.query_start.data(),
                     p.lens.data(), p.positions.data(), rules.data(), p.scale,      p.soft_cap, p.group};
  AttentionPlan plan = cut_of(step, p, cut);
  std::vector<float> scratch(size_t(isa::attention_scratch(std::max<int64_t>(plan.max_rows, 1), p.dim)), NAN);
  std::shuffle(plan.units.begin(), plan.units.end(), rng);
  for (const AttentionUnit& unit : plan.units) isa::attend(step, unit, scratch.data());
  for (const AttentionUnit& unit : plan.combines) isa::combine(step, unit, scratch.data());
  if (cut == Cut::split)
    for (int64_t len : p.lens)
      if (len > 2 * kSegment && !p.rule.window) CHECK(!plan.combines.empty(), "nothing was split");
  return out;
}

static double stored(float x, DType dtype) {
  if (dtype == DType::f32) return x;
  int e;
  std::frexp(x, &e);
  const double unit = dtype == DType::bf16 ? std::ldexp(1.0, e - 8) : std::ldexp(1.0, std::max(e - 11, -24));
  return std::nearbyint(x / unit) * unit;
}

// The largest error against plain loops in double.
static double error_of(const Problem& p, const std::vector<float>& out) {
  double worst = 0;
  const int64_t D = p.dim, H = p.heads * p.group;
  for (size_t r = 0; r < p.lens.size(); r++)
    for (int64_t t = p.query_start[r]; t < p.query_start[r + 1]; t++)
      for (int64_t h = 0; h < H; h++) {
        std::vector<double> score, sum(size_t(D), 0.0);
        std::vector<int64_t> seen;
        double largest = -INFINITY, total = 0;
        for (int64_t k = 0; k < p.lens[r]; k++) {
          if (!visible(p.rule, p.positions[size_t(t)], k)) continue;
          double s = 0;
          for (int64_t d = 0; d < D; d++)
            s += static_cast<double>(p.q[size_t((t * H + h) * D + d)]) *
                 stored(p.keys[r][size_t((k * p.heads + h / p.group) * D + d)], p.dtype);
          s *= p.scale;
          if (p.soft_cap != 0) s = p.soft_cap * std::tanh(s / p.soft_cap);
          score.push_back(s), seen.push_back(k), largest = std::max(largest, s);
        }
        for (size_t i = 0; i < seen.size(); i++) {
          const double w = std::exp(score[i] - largest);
          total += w;
          for (int64_t d = 0; d < D; d++)
            sum[size_t(d)] += w * stored(p.values[r][size_t((seen[i] * p.heads + h / p.group) * D + d)], p.dtype);
        }
        for (int64_t d = 0; d < D; d++) {
          const double got = out[size_t((t * H + h) * D + d)], want = seen.empty() ? 0 : sum[size_t(d)] / total;
          if (!(std::fabs(got - want) <= worst)) worst = std::isnan(got) ? INFINITY : std::fabs(got - want);
        }
      }
  return worst;
}

static void check_bits(const Problem& p, const std::vector<int64_t>& sizes) {
  const std::vector<float> first = run(p, 16, Cut::whole);
  const double error = error_of(p, first);
  CHECK(error < 4e-6, "error %g heads %d group %d dim %d dtype %d window %ld sinks %ld prefix %ld causal %d len %ld count %ld",
        error, p.heads, p.group, p.dim, int(p.dtype), p.rule.window, p.rule.sinks, p.rule.prefix, p.rule.causal, p.lens[0],
        p.counts[0]);
  for (int64_t size : sizes)
    for (Cut cut : {Cut::whole, Cut::rows_1, Cut::rows_3, Cut::rows_16, Cut::split}) {
      const std::vector<float> other = run(p, size, cut, size % 16 == 0);
      CHECK(!std::memcmp(first.data(), other.data(), first.size() * sizeof(float)),
            "bits differ: block size %ld cut %d dim %d group %d len %ld count %ld", size, int(cut), p.dim, p.group, p.lens[0],
            p.counts[0]);
    }
}

static void a_row_has_the_same_bits_however_the_work_is_cut() {
  const std::vector<int64_t> all = {1, 5, 8, 12, 16, 24, 32, 64};
  const Rule plain{0, 0, 0, 1};
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    check_bits(make_problem(2, 3, 64, dtype, plain, {37, 70, 1}, {1, 20, 1}), all);
  for (int32_t group : {1, 2, 4, 5, 7, 8, 11})
    check_bits(make_problem(1, group, 32, DType::f32, plain, {45, 33}, {1, 33}), {8, 32});
  for (int32_t dim : {8, 72, 80, 128, 256}) check_bits(make_problem(1, 3, dim, DType::bf16, plain, {50}, {18}), {1, 8, 64});
  check_bits(make_problem(1, 2, 64, DType::f32, plain, {2500}, {1}), {1, 16, 64});
  check_bits(make_problem(1, 1, 16, DType::f16, plain, {1100, 2049}, {40, 2}), {8, 32});
  check_bits(make_problem(1, 2, 64, DType::f32, plain, {90}, {9}, 3.0f), {1, 32});
}

static void every_rule_is_applied() {
  for (int round = 0; round < 60; round++) {
    const Rule rule{pick(0, 2) ? pick(1, 80) : 0, pick(0, 1) ? pick(0, 40) : 0, pick(0, 2) ? 0 : pick(1, 60), pick(0, 3) ? 1 : 0};
    const int64_t len = pick(1, 180), other = pick(1, 40);
    check_bits(make_problem(1, static_cast<int32_t>(pick(1, 4)), 16, DType::f32, rule, {len, other}, {pick(1, len), 1}),
               {1, 8, 64});
  }
  check_bits(make_problem(1, 2, 16, DType::bf16, {40, 4, 0, 1}, {2600}, {5}), {8, 16});
  check_bits(make_problem(1, 2, 16, DType::bf16, {1500, 0, 0, 1}, {2600}, {1}), {8, 16});
}

static void what_is_not_finite_is_reported() {
  const int64_t dim = 16, size = 4;
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    std::vector<unsigned char> memory(size_t(2 * 8 * dim * size * 4));
    EntryStorage entries{
        memory.data(), memory.data() + memory.size() / 2, dim * size, dim * size, size, 8, 1, static_cast<int32_t>(dim), dtype};
    std::vector<float> k(size_t(4 * dim), 1.0f), v = k;
    k[0] = NAN;  // a row that is not written is not looked at
    v[size_t(2 * dim)] = INFINITY;
    k[size_t(3 * dim + 1)] = 1e5f;           // infinite in fp16 alone
    k[size_t(3 * dim + 2)] = 3.4028235e38f;  // infinite in bf16 and fp16
    const std::vector<int64_t> slots = {-1, 5, 9, 2};
    WriteReport report;
    isa::write_entries(entries, k.data(), v.data(), slots.data(), 4, &report);
    CHECK(report.first_bad_slot == 9, "slot %ld", report.first_bad_slot);
    const int64_t want = dtype == DType::f32 ? 1 : dtype == DType::bf16 ? 2 : 3;
    CHECK(report.num_not_finite == want, "%ld of dtype %d", report.num_not_finite, int(dtype));
  }
}

// Halfway cases and subnormals round to even, on every build alike.
static void entries_round_to_nearest_even() {
  for (DType dtype : {DType::bf16, DType::f16}) {
    std::vector<uint16_t> keys(8), values(8);
    EntryStorage entries{keys.data(), values.data(), 8, 8, 1, 1, 1, 8, dtype};
    const int64_t slot = 0;
    for (int round = 0; round < 40000; round++) {
      std::vector<float> k(8), v(8);
      for (size_t i = 0; i < 8; i++) {
        // a number that the dtype has, and half of the distance to the next one or a little more or less
        const double unit = std::ldexp(1.0, int(pick(dtype == DType::f16 ? -24 : -100, dtype == DType::f16 ? 4 : 100)));
        const double middle =
            unit * (static_cast<double>(pick(-(dtype == DType::f16 ? 2047 : 255), dtype == DType::f16 ? 2047 : 255)) + 0.5);
        k[i] = static_cast<float>(middle), v[i] = std::nextafter(k[i], round % 2 ? INFINITY : -INFINITY);
      }
      isa::write_entries(entries, k.data(), v.data(), &slot, 1, nullptr);
      const auto wide = [&](uint16_t h) { return dtype == DType::bf16 ? isa::widen(isa::bf16_t{h}) : isa::widen(isa::f16_t{h}); };
      for (size_t i = 0; i < 8; i++) {
        CHECK(wide(keys[i]) == stored(k[i], dtype), "%a of dtype %d", static_cast<double>(k[i]), int(dtype));
        CHECK(wide(values[i]) == stored(v[i], dtype), "%a of dtype %d", static_cast<double>(v[i]), int(dtype));
      }
    }
  }
}

// The inverse: a visible NaN must be seen, or the poison above would prove nothing.
static void a_visible_nan_reaches_its_own_row_alone() {
  Problem p = make_problem(1, 1, 16, DType::f32, {0, 0, 0, 1}, {40}, {40});
  const std::vector<float> clean = run(p, 16, Cut::whole);
  p.q[20 * 16] = NAN;
  const std::vector<float> out = run(p, 16, Cut::whole);
  for (size_t i = 0; i < out.size(); i++) CHECK(i / 16 == 20 ? std::isnan(out[i]) : out[i] == clean[i], "row %zu", i / 16);
}

int main() {
  a_row_has_the_same_bits_however_the_work_is_cut();
  every_rule_is_applied();
  what_is_not_finite_is_reported();
  entries_round_to_nearest_even();
  a_visible_nan_reaches_its_own_row_alone();
  std::puts("attention: ok");
}
