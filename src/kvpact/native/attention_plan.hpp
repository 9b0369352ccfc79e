// Cuts a step's attention into units. How it is cut changes no bit, only who computes what.
#pragma once

#include <vector>

#include "kernels/attention_types.hpp"

namespace kvpact {

// Filled again for every step; keeps its memory.
struct AttentionPlan {
  std::vector<AttentionUnit> units;     // to be run by `attend`, in any order
  std::vector<AttentionUnit> combines;  // to be run by `combine` after all units
  std::vector<AttentionUnit> whole;     // units before they are split
  std::vector<float> partial;           // the units point into it
  int64_t max_rows = 0;                 // of any unit: the size of the scratch
};

// At most kMaxRows rows a unit. When there are fewer than four units a thread, contexts over kSegment are split by segment.
void plan_attention(const AttentionStep& step, int64_t num_requests, int num_threads, AttentionPlan& plan);

}  // namespace kvpact
