// What sampling reads off a row and the draw of a token, against a full sort, one candidate at a time.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "../kernels/draw.hpp"
#include "../kernels/exponential.hpp"
#include "../kernels/order.hpp"
#include "../kernels/sample.hpp"
#include "../philox.hpp"
#include "check.hpp"

namespace isa = kvpact::KVPACT_ISA_NS;
using kvpact::DrawCall;

static std::mt19937 rng(11);
static std::vector<float> normals(size_t n, float scale = 1) {
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (auto& v : x) v = scale * normal(rng);
  return x;
}

static void a_row_of_logits_is_read_right() {
  for (int64_t vocab : {1, 2, 3, 7, 8, 9, 1000, 4096, 4099}) {
    std::vector<float> x = normals(size_t(vocab), 4);
    x[size_t(vocab / 2)] = x[size_t(vocab - 1)] = 50;  // a tie
    if (vocab > 3) x[0] = -INFINITY;
    kvpact::RowFacts facts = isa::row_facts(x.data(), vocab);
    CHECK(facts.largest == 50 && facts.argmax == vocab / 2 && facts.num_not_valid == 0 && facts.first_not_valid == -1, "vocab %ld",
          vocab);
    CHECK(isa::rank_of(x.data(), vocab, vocab / 2) == 1, "rank of the first of a tie");
    CHECK(isa::rank_of(x.data(), vocab, vocab - 1) == (vocab > 2 || vocab == 2 ? (vocab / 2 == vocab - 1 ? 1 : 2) : 1),
          "rank of the second");
    std::vector<double> scratch(size_t(isa::exp_sum_scratch(vocab)));
    long double want = 0;
    for (float v : x) want += std::exp(static_cast<long double>(v) - 50);
    const double got = isa::exp_sum(x.data(), vocab, facts.largest, scratch.data());
    CHECK(std::fabs(double(got - want)) < 4e-16 * double(want) * 16, "exp_sum %.17g", got);
    x[size_t(vocab - 1)] = NAN;
    facts = isa::row_facts(x.data(), vocab);
    CHECK(std::isnan(facts.largest) && facts.num_not_valid == 1 && facts.first_not_valid == vocab - 1, "NaN, vocab %ld", vocab);
    x[size_t(vocab / 3)] = INFINITY;
    facts = isa::row_facts(x.data(), vocab);
    CHECK(facts.first_not_valid == vocab / 3 && facts.num_not_valid == (vocab == 1 ? 1 : 2), "infinity, vocab %ld", vocab);
  }
  const std::vector<float> none(20, -INFINITY);
  CHECK(isa::row_facts(none.data(), 20).largest == -INFINITY, "a row without a candidate");
}

// Rows of many kinds: usual, all alike, full of ties, half of them -inf, and one whose sampled logits mislead.
static std::vector<std::vector<float>> rows_of(int64_t vocab) {
  const size_t n = size_t(vocab);
  std::vector<float> ties = normals(n, 2), holes = normals(n, 5), misleading = normals(n);
  for (auto& v : ties) v = std::round(v);
  for (size_t i = 0; i < n; i += 2) holes[i] = -INFINITY;
  holes[n / 2] = 1;
  for (size_t i = 0; i < n; i += isa::Order::kStride) misleading[i] += 1000;
  return {normals(n, 3), std::vector<float>(n, -0.0f), ties, holes, misleading, normals(n, 1e-6f)};
}

static std::vector<int64_t> sorted_ids(const std::vector<float>& x) {
  std::vector<int64_t> ids(x.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) { return x[size_t(a)] > x[size_t(b)]; });
  return ids;
}

static const int64_t kSizes[] = {1, 2, 3, 15, 16, 17, 40, 257, 1000, 5003, 49152};

static void the_front_of_the_order_is_that_of_a_full_sort() {
  for (int64_t vocab : kSizes)
    for (const auto& x : rows_of(vocab)) {
      const std::vector<int64_t> want = sorted_ids(x);
      std::vector<uint64_t> scratch(size_t(isa::order_scratch(vocab)));
      for (int64_t count : {int64_t(0), int64_t(1), vocab / 50, vocab / 3, vocab}) {
        std::vector<int64_t> got(static_cast<size_t>(count));
        isa::first_of(x.data(), vocab, count, scratch.data(), got.data());
        CHECK(std::equal(got.begin(), got.end(), want.begin()), "the first %ld of %ld", long(count), long(vocab));
      }
      isa::Order order(x.data(), vocab, scratch.data());
      for (int64_t wanted = 1; !order.complete(); wanted = order.size() + 1) {  // in as many steps as it takes
        order.extend(wanted);
        for (int64_t i = 0; i < order.size(); i += std::max<int64_t>(1, order.size() / 300))
          CHECK(isa::id_of(order[i]) == want[size_t(i)], "place %ld of %ld", long(i), long(vocab));
      }
      CHECK(order.size() == vocab, "%ld of %ld", long(order.size()), long(vocab));
    }
}

static int64_t drawn_from_a_full_sort(const DrawCall& call, const std::vector<int64_t>& order) {
  const int64_t vocab = call.vocab, limit = call.top_k > 0 ? std::min(call.top_k, vocab) : vocab;
  const auto scaled = [&](int64_t id) {
    return (static_cast<double>(call.logits[id]) - static_cast<double>(call.logits[order[0]])) / call.temperature;
  };
  std::vector<double> running(static_cast<size_t>(limit)), tree(1);
  double sum = 0;
  for (int64_t i = 0; i < limit; i++) running[size_t(i)] = sum += isa::exponential(scaled(order[size_t(i)]));
  while (tree.size() < size_t(vocab)) tree.resize(2 * tree.size());
  for (int64_t id = 0; id < vocab; id++) tree[size_t(id)] = isa::exponential(scaled(id));
  for (size_t half = tree.size() / 2; half; half /= 2)
    for (size_t i = 0; i < half; i++) tree[i] += tree[i + half];
  int64_t keep = limit;
  const double total = limit == vocab ? tree[0] : sum;
  if (call.top_p < 1)
    for (keep = 1; keep < limit && running[size_t(keep - 1)] < call.top_p * total; keep++) {}
  while (!(scaled(order[size_t(keep - 1)]) >= call.log_min_p)) keep--;
  const bool all = limit == vocab && call.top_p == 1 && call.log_min_p == -INFINITY;
  const double target = call.u * (all ? total : running[size_t(keep - 1)]);
  for (int64_t i = 0; i < keep; i++)
    if (running[size_t(i)] > target) return order[size_t(i)];
  while (keep > 1 && running[size_t(keep - 2)] == running[size_t(keep - 1)]) keep--;
  return order[size_t(keep - 1)];
}

static void a_draw_is_that_of_a_full_sort() {
  int64_t places_drawn = 0;
  for (int64_t vocab : kSizes)
    for (const auto& x : rows_of(vocab)) {
      const std::vector<int64_t> order = sorted_ids(x);
      std::vector<uint64_t> scratch(size_t(isa::order_scratch(vocab)));
      std::vector<double> sums(static_cast<size_t>(vocab));
      const auto any = [](auto... values) {
        const std::vector<double> all = {static_cast<double>(values)...};
        return all[rng() % all.size()];
      };
      for (int round = 0; round < 40; round++) {
        const double share = std::uniform_real_distribution<double>(0, 1)(rng);
        const DrawCall call = {x.data(),
                               vocab,
                               any(5e-324, 1e-300, 0.01, 0.7, 1, 1, 1.3, 1e6, 1e300),
                               static_cast<int64_t>(any(0, -1, 1, 2, 50, vocab - 1, vocab, 1e9)),
                               any(1, 1, 1e-300, 0.3, 0.9, share, 1 - 0x1p-53),
                               any(-INFINITY, -INFINITY, -20, -1, 0),
                               any(0, 0.5, 1 - 0x1p-53, share, share)};
        const int64_t want = drawn_from_a_full_sort(call, order), got = isa::draw(call, scratch.data(), sums.data());
        CHECK(got == want, "vocab %ld, temperature %g, top_k %ld, top_p %.17g, log_min_p %g, u %.17g: %ld, not %ld", long(vocab),
              call.temperature, long(call.top_k), call.top_p, call.log_min_p, call.u, long(got), long(want));
        places_drawn += got != order[0];
      }
    }
  CHECK(places_drawn > 500, "only %ld draws took another than the first", long(places_drawn));
}

static void a_row_without_a_candidate_draws_none() {
  for (float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> x(40, bad == -INFINITY ? bad : 0.0f);
    x[33] = bad;
    std::vector<uint64_t> scratch(size_t(isa::order_scratch(40)));
    std::vector<double> sums(40);
    CHECK(isa::draw({x.data(), 40, 1, 0, 0.9, -INFINITY, 0.5}, scratch.data(), sums.data()) == -1, "a row with %g", double(bad));
  }
}

static void philox_has_its_published_words() {  // the known answers of Random123, kat_vectors
  CHECK(kvpact::philox4x64(0, 0, 0) == 0x16554d9eca36314cu, "key 0, counter 0");
  CHECK(kvpact::uniform(0, 0, ~uint64_t{0}) == static_cast<double>(0x16554d9eca36314cu >> 11) * 0x1p-53, "its upper 53 bits");
  CHECK(kvpact::philox4x64(1, 0, 0) != kvpact::philox4x64(0, 1, 0), "both words of the key");
}

int main() {
  a_row_of_logits_is_read_right();
  the_front_of_the_order_is_that_of_a_full_sort();
  a_draw_is_that_of_a_full_sort();
  a_row_without_a_candidate_draws_none();
  philox_has_its_published_words();
  return kvpact::tests::result("sample");
}
