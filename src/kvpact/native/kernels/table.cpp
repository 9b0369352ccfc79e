// One build's functions, in one table.
#include "attention.hpp"
#include "draw.hpp"
#include "kernels.hpp"
#include "linear.hpp"
#include "probe.hpp"
#include "rows.hpp"
#include "sample.hpp"

#define KVPACT_TEXT(name) KVPACT_TEXT_OF(name)
#define KVPACT_TEXT_OF(name) #name

namespace kvpact::KVPACT_ISA_NS {

const Kernels& table() {
  static constexpr Kernels kTable = {KVPACT_TEXT(KVPACT_ISA_NS), linear_packed_bytes, linear_pack, linear, attention_scratch, attend,
                                     combine, write_entries, embed, rms_norm, layer_norm, rotary_table, rotate, activate, add_rows,
                                     row_facts, exp_sum_scratch, exp_sum, rank_of, order_scratch, first_of, draw,
                                     multiply_adds, read_lines};
  return kTable;
}

}  // namespace kvpact::KVPACT_ISA_NS
