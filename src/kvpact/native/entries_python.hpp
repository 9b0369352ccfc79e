// A layer's entries and a request's rules as Python hands them over.
#pragma once

#include <vector>

#include "arrays.hpp"
#include "kernels/attention_types.hpp"

namespace kvpact {

// One layer's memory, which Python owns and keeps.
struct Entries {
  EntryStorage storage;
  int64_t num_slots() const { return storage.num_blocks * storage.block_size; }
};

// One group's arrays of a step, checked. `rules` is this object's; the rest points into Python's arrays.
struct StepArrays {
  const int64_t* query_start;
  const int64_t* seq_lens;
  const int64_t* block_table;
  int64_t num_requests, num_tokens, table_stride;
  std::vector<Rule> rules;
};

// query_start [R + 1], seq_lens [R], block_table [R, any], rules int64 [R, 4]: causal, window (0: none), sinks, prefix.
// Every block that a length needs lies in the table, and every table entry in the pool.
inline StepArrays checked_step(const Array& query_start, const Array& seq_lens, const Array& block_table, const Array& rules,
                               const EntryStorage& entries) {
  StepArrays step;
  step.seq_lens = checked<int64_t>(seq_lens, "seq_lens", {kAny});
  step.num_requests = static_cast<int64_t>(seq_lens.shape(0));
  step.query_start = checked<int64_t>(query_start, "query_start_loc", {step.num_requests + 1});
  step.num_tokens = step.query_start[step.num_requests];
  step.block_table = checked<int64_t>(block_table, "block_table", {step.num_requests, kAny});
  step.table_stride = static_cast<int64_t>(block_table.shape(1));
  const int64_t* rule = checked<int64_t>(rules, "rules", {step.num_requests, 4});
  if (step.query_start[0] != 0) throw nb::value_error("query_start_loc does not start at 0");
  check_range(step.seq_lens, step.num_requests, 0, step.table_stride * entries.block_size + 1, "seq_lens");
  for (int64_t r = 0; r < step.num_requests; r++, rule += 4) {
    const int64_t rows = step.query_start[r + 1] - step.query_start[r];
    if (rows < 0 || rows > step.seq_lens[r])
      throw nb::value_error(("request " + std::to_string(r) + " has " + std::to_string(rows) + " query tokens of a length of " +
                             std::to_string(step.seq_lens[r])).c_str());
    const int64_t blocks = (step.seq_lens[r] + entries.block_size - 1) / entries.block_size;
    check_range(step.block_table + r * step.table_stride, blocks, 0, entries.num_blocks, "block_table");
    check_range(rule, 4, 0, INT64_MAX, "rules");
    step.rules.push_back(Rule{rule[1], rule[2], rule[3], rule[0] != 0});
  }
  return step;
}

}  // namespace kvpact
