// The draw of a token from a row of logits, and the front of a row's order: kvpact.model.draw and kvpact.model.fixed to the bit.
#pragma once

#include <cstdint>

#include "row_types.hpp"

namespace kvpact::KVPACT_ISA_NS {

// Words of scratch that first_of and draw need. Neither allocates.
int64_t order_scratch(int64_t vocab);

// The first `count` <= vocab token ids by (logit descending, id ascending). The row holds no NaN.
void first_of(const float* logits, int64_t vocab, int64_t count, uint64_t* scratch, int64_t* ids);

// The token id: temperature, top-k, top-p, min-p, then the first candidate whose running sum of weights exceeds u times the mass.
// A weight is exp((logit - largest) / temperature). Weights are summed one after the other in the order; the mass of a whole row is
// summed over the fixed tree by id. sums: [vocab]. Returns -1 when the row has no candidate.
int64_t draw(const DrawCall& call, uint64_t* scratch, double* sums);

}  // namespace kvpact::KVPACT_ISA_NS
