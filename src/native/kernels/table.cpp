// One build's functions, in one table.
#include "kernels.hpp"
#include "linear.hpp"

#define KVPACT_TEXT(name) KVPACT_TEXT_OF(name)
#define KVPACT_TEXT_OF(name) #name

namespace kvpact::KVPACT_ISA_NS {

const Kernels& table() {
  static constexpr Kernels kTable = {KVPACT_TEXT(KVPACT_ISA_NS), linear_packed_bytes, linear_pack, linear};
  return kTable;
}

}  // namespace kvpact::KVPACT_ISA_NS
