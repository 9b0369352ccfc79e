// Which build of the kernels runs here.
#pragma once

#include "kernels/kernels.hpp"

namespace kvpact {

// The best build that this processor and system can run, or the one that the environment variable KVPACT_ISA names
// ("avx512", "avx2", "baseline"). Raises std::runtime_error when that one is unknown or can't run here.
const Kernels& select_kernels();

}  // namespace kvpact
