// The linear layer whose bits depend on a row alone: not on its company, the panels asked for or the threads.
#pragma once

#include "kernels.hpp"

namespace kvpact::KVPACT_ISA_NS {

int64_t linear_packed_bytes(int64_t out_features, int64_t in_features, DType dtype);
void linear_pack(const LinearPackCall& call);
void linear(const LinearCall& call);

}  // namespace kvpact::KVPACT_ISA_NS
