// What sampling reads off a row of logits: all that kvpact.model.fixed computes over the whole vocabulary, bit for bit.
#pragma once

#include <cstdint>

#include "row_types.hpp"

namespace kvpact::KVPACT_ISA_NS {

// One row of logits [vocab], fp32.
RowFacts row_facts(const float* logits, int64_t vocab);

// fp64 numbers of scratch that exp_sum needs.
int64_t exp_sum_scratch(int64_t vocab);

// sum(exp(logits - largest)) in fp64: the row padded with +0 to a power of two, then the upper half is added to the lower until one is
// left. The log-sum-exp is largest + log of this; equal to tree_sum(exponential(logits - largest)) of the Python sampler to the bit.
double exp_sum(const float* logits, int64_t vocab, float largest, double* scratch);

// How many tokens come before `token` in the order (logit descending, id ascending), plus one.
int64_t rank_of(const float* logits, int64_t vocab, int64_t token);

}  // namespace kvpact::KVPACT_ISA_NS
