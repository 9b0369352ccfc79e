// What sampling reads off a row of logits. Bit for bit what kvpact.model.fixed computes.
#include "bindings.hpp"

#include <vector>

#include "arrays.hpp"
#include "dispatch.hpp"

namespace kvpact {
namespace {

double exp_sum(Array logits, float largest) {
  const float* row = checked<float>(logits, "logits", {kAny});
  const auto vocab = static_cast<int64_t>(logits.shape(0));
  if (!vocab) throw nb::value_error("logits are empty");
  const Kernels& kernels = select_kernels();
  nb::gil_scoped_release unlocked;
  std::vector<double> scratch(static_cast<size_t>(kernels.exp_sum_scratch(vocab)));
  return kernels.exp_sum(row, vocab, largest, scratch.data());
}

int64_t rank(Array logits, int64_t token) {
  const float* row = checked<float>(logits, "logits", {kAny});
  const auto vocab = static_cast<int64_t>(logits.shape(0));
  check_range(&token, 1, 0, vocab, "token");
  return select_kernels().rank_of(row, vocab, token);
}

nb::tuple row_facts(Array logits) {
  const float* row = checked<float>(logits, "logits", {kAny});
  const auto vocab = static_cast<int64_t>(logits.shape(0));
  if (!vocab) throw nb::value_error("logits are empty");
  const RowFacts facts = select_kernels().row_facts(row, vocab);
  return nb::make_tuple(facts.largest, facts.argmax, facts.num_not_valid, facts.first_not_valid);
}

}  // namespace

void bind_sample(nb::module_& m) {
  m.def("exp_sum", &exp_sum, nb::arg("logits"), nb::arg("largest"),
        "sum(exp(logits - largest)) of [vocab] float32 in float64, over the fixed tree; no logit exceeds `largest`, which is finite.");
  m.def("rank", &rank, nb::arg("logits"), nb::arg("token"), "The token's place, from 1, by (logit descending, id ascending).");
  m.def("row_facts", &row_facts, nb::arg("logits"),
        "(largest, its lowest id, how many are NaN or +inf, the first of them or -1) of [vocab] float32.");
}

}  // namespace kvpact
