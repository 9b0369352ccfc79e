// What the machine can do at most, for benchmarks to compare with.
#pragma once

#include <cstdint>

namespace kvpact::KVPACT_ISA_NS {

// Independent multiply-adds in registers -> floating-point operations done. `sink` is read and written so that nothing is left out.
int64_t multiply_adds(int64_t rounds, float* sink);

// Reads num_bytes once, in ascending order, and prefetches as much from `next` line by line; what is left over of a cache line at the end
// is not read.
void read_lines(const void* data, int64_t num_bytes, const void* next, float* sink);

}  // namespace kvpact::KVPACT_ISA_NS
