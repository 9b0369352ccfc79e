// From a row of logits to a token: bit for bit what kvpact.model.fixed, .draw and .philox compute.
#include "bindings.hpp"

#include <cmath>
#include <vector>

#include "arrays.hpp"
#include "dispatch.hpp"
#include "philox.hpp"

namespace kvpact {
namespace {

// Each thread's own, kept from call to call: a step samples rows of one length, so after the first nothing is allocated.
struct Scratch {
  std::vector<double> sums;
  std::vector<uint64_t> words;
  int64_t num_allocations = 0;

  template <class T>
  T* reserve(std::vector<T>& memory, int64_t count) {
    if (static_cast<int64_t>(memory.size()) < count) {
      memory.resize(static_cast<size_t>(count));
      num_allocations++;
    }
    return memory.data();
  }
};

Scratch& scratch() {
  thread_local Scratch own;
  return own;
}

struct Row {
  const float* logits;
  int64_t vocab;
};

Row row_of(const Array& logits) {
  const float* row = checked<float>(logits, "logits", {kAny});
  const auto vocab = static_cast<int64_t>(logits.shape(0));
  if (!vocab) throw nb::value_error("logits are empty");
  return {row, vocab};
}

void require(bool holds, const char* name, double value, const char* rule) {
  if (!holds) throw nb::value_error((std::string(name) + " is " + std::to_string(value) + ", must be " + rule).c_str());
}

double exp_sum(Array logits, float largest) {
  const Row row = row_of(logits);
  const Kernels& kernels = select_kernels();
  nb::gil_scoped_release unlocked;
  double* tree = scratch().reserve(scratch().sums, kernels.exp_sum_scratch(row.vocab));
  return kernels.exp_sum(row.logits, row.vocab, largest, tree);
}

int64_t rank(Array logits, int64_t token) {
  const Row row = row_of(logits);
  check_range(&token, 1, 0, row.vocab, "token");
  return select_kernels().rank_of(row.logits, row.vocab, token);
}

nb::tuple row_facts(Array logits) {
  const Row row = row_of(logits);
  const RowFacts facts = select_kernels().row_facts(row.logits, row.vocab);
  return nb::make_tuple(facts.largest, facts.argmax, facts.num_not_valid, facts.first_not_valid);
}

void first(Array logits, Array out) {
  const Row row = row_of(logits);
  auto* ids = const_cast<int64_t*>(checked<int64_t>(out, "out", {kAny}));
  const auto count = static_cast<int64_t>(out.shape(0));
  if (count > row.vocab)
    throw nb::value_error(("out has room for " + std::to_string(count) + " ids, the row has " + std::to_string(row.vocab)).c_str());
  const Kernels& kernels = select_kernels();
  nb::gil_scoped_release unlocked;
  uint64_t* words = scratch().reserve(scratch().words, kernels.order_scratch(row.vocab));
  kernels.first_of(row.logits, row.vocab, count, words, ids);
}

int64_t draw(Array logits, double temperature, int64_t top_k, double top_p, double log_min_p, double u) {
  const Row row = row_of(logits);
  require(temperature > 0 && std::isfinite(temperature), "temperature", temperature, "positive and finite");
  require(top_p > 0 && top_p <= 1, "top_p", top_p, "in (0, 1]");
  require(log_min_p <= 0, "log_min_p", log_min_p, "0 or less");
  require(u >= 0 && u < 1, "u", u, "in [0, 1)");
  const Kernels& kernels = select_kernels();
  int64_t token;
  {
    nb::gil_scoped_release unlocked;
    uint64_t* words = scratch().reserve(scratch().words, kernels.order_scratch(row.vocab));
    double* sums = scratch().reserve(scratch().sums, row.vocab);
    token = kernels.draw({row.logits, row.vocab, temperature, top_k, top_p, log_min_p, u}, words, sums);
  }
  if (token < 0) throw nb::value_error("logits hold a NaN or +inf, or -inf alone: no token can be drawn");
  return token;
}

}  // namespace

void bind_sample(nb::module_& m) {
  m.def("exp_sum", &exp_sum, nb::arg("logits"), nb::arg("largest"),
        "sum(exp(logits - largest)) of [vocab] float32 in float64, over the fixed tree; no logit exceeds `largest`, which is finite.");
  m.def("rank", &rank, nb::arg("logits"), nb::arg("token"), "The token's place, from 1, by (logit descending, id ascending).");
  m.def("row_facts", &row_facts, nb::arg("logits"),
        "(largest, its lowest id, how many are NaN or +inf, the first of them or -1) of [vocab] float32.");
  m.def("first", &first, nb::arg("logits"), nb::arg("out"),
        "Fills out [count] int64 with the first ids of [vocab] float32 by (logit descending, id ascending); -1 where there is none.");
  m.def("draw", &draw, nb::arg("logits"), nb::arg("temperature"), nb::arg("top_k"), nb::arg("top_p"), nb::arg("log_min_p"), nb::arg("u"),
        "The token drawn from processed logits, [vocab] float32, by u in [0, 1), as kvpact.model.draw does it. Raises ValueError.");
  m.def("uniform", &uniform, nb::arg("seed"), nb::arg("choice"), nb::arg("output_position"),
        "A number in [0, 1): word 0 of Philox4x64-10, as kvpact.model.philox documents it.");
  m.def("num_sample_allocations", [] { return scratch().num_allocations; },
        "How often this thread's scratch for sampling had to grow.");
}

}  // namespace kvpact
