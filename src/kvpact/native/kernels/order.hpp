// Token ids of a row by (logit descending, id ascending), from the front, as far as they are asked for.
#pragma once

#include "simd.hpp"

namespace kvpact::KVPACT_ISA_NS {

// Both parts of the order in 64 bits: no two keys are equal, and the lower one comes first.
static inline uint64_t key_of(float logit, int64_t id) {
  const uint32_t bits = as_bits(logit + 0.0f);  // + 0 makes -0 equal to +0
  const uint32_t descending = bits >> 31 ? bits : ~bits ^ 0x80000000u;
  return static_cast<uint64_t>(descending) << 32 | static_cast<uint64_t>(id);
}
static inline int64_t id_of(uint64_t key) { return static_cast<int64_t>(key & 0xffffffffu); }
static inline float logit_of(uint64_t key) {
  const auto descending = static_cast<uint32_t>(key >> 32);
  return as_float(descending >> 31 ? descending : ~descending ^ 0x80000000u);
}

// Every kStride-th logit, sorted, tells a threshold that about enough logits reach. All that reach it, ties included, are the front of
// the order whatever the sample was, and only they are sorted; the threshold falls when more are asked for.
class Order {
 public:
  static constexpr int64_t kStride = 16;
  static int64_t scratch(int64_t vocab) { return 2 * (vocab + 1) + vocab / kStride + 1; }

  // logits [vocab]: a NaN is in no place of the order. `words`: scratch(vocab) of them.
  Order(const float* logits, int64_t vocab, uint64_t* words);

  // Finds at least `wanted` candidates, or all there are.
  void extend(int64_t wanted);

  int64_t size() const { return size_; }                // how many are found
  bool complete() const { return complete_; }           // no more are to be found
  uint64_t operator[](int64_t i) const { return keys_[i]; }

 private:
  void gather(float low);

  const float* logits_;
  int64_t vocab_;
  uint64_t* keys_;    // [vocab + 1]
  uint64_t* spare_;   // [vocab + 1]: where a sort puts what it moves
  uint64_t* sample_;  // [num_sample]
  int64_t num_sample_ = 0;
  int64_t size_ = 0;
  float reached_ = __builtin_inff();  // all that lie at or above are found
  bool complete_ = false;
};

}  // namespace kvpact::KVPACT_ISA_NS
