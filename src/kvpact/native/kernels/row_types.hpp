// What row operators and sampling are called with: plain C types, the same for every instruction set.
#pragma once

#include <cstdint>

namespace kvpact {

enum class Activation : int32_t { silu = 0, gelu = 1, gelu_tanh = 2 };

// What a row of logits holds. It is usable when `largest` is finite.
struct RowFacts {
  float largest;            // NaN when the row holds one
  int64_t argmax;           // the lowest id of the largest logit; without meaning when there is a NaN
  int64_t num_not_valid;    // NaN or +inf; -inf is allowed: it says that a token can't follow
  int64_t first_not_valid;  // its id; -1: none
};

// One draw from a row of processed logits: no NaN, no +inf, not -inf everywhere.
struct DrawCall {
  const float* logits;
  int64_t vocab;
  double temperature;  // positive
  int64_t top_k;       // all candidates when it is not in [1, vocab)
  double top_p;        // in (0, 1]; 1: all
  double log_min_p;    // the logarithm of min_p; -inf: all
  double u;            // in [0, 1)
};

}  // namespace kvpact
