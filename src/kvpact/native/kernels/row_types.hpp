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

}  // namespace kvpact
