// How an entry or a weight is stored. Whatever is narrower than fp32 is widened exactly and computed in fp32.
#pragma once

#include <cstdint>

namespace kvpact {

enum class DType : int32_t { f32 = 0, bf16 = 1, f16 = 2 };

}  // namespace kvpact
