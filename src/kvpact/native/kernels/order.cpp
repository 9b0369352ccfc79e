#include "order.hpp"

namespace kvpact::KVPACT_ISA_NS {
namespace {

constexpr int kDigits = 4, kValues = 256;  // four digits of 8 bits each: the logit's half of a key
constexpr int64_t kFew = 32;               // so few are sorted by insertion

void insertion_sort(uint64_t* keys, int64_t count) {
  for (int64_t i = 1; i < count; i++) {
    const uint64_t key = keys[i];
    int64_t k = i;
    for (; k > 0 && keys[k - 1] > key; k--) keys[k] = keys[k - 1];
    keys[k] = key;
  }
}

// Sorts keys whose ids ascend already: one stable pass for each digit of the logit, lowest first, keeps them so within a tie.
void sort(uint64_t* keys, int64_t count, uint64_t* spare) {
  if (count <= kFew) return insertion_sort(keys, count);
  uint32_t place[kDigits][kValues] = {};
  for (int64_t i = 0; i < count; i++)
    for (int digit = 0; digit < kDigits; digit++) place[digit][keys[i] >> (32 + 8 * digit) & 0xff]++;
  uint64_t *from = keys, *to = spare;
  for (int digit = 0; digit < kDigits; digit++) {
    uint32_t* next = place[digit];
    const int shift = 32 + 8 * digit;
    if (next[from[0] >> shift & 0xff] == count) continue;  // all have the same
    uint32_t start = 0;
    for (int value = 0; value < kValues; value++) {
      const uint32_t num = next[value];
      next[value] = start;
      start += num;
    }
    for (int64_t i = 0; i < count; i++) to[next[from[i] >> shift & 0xff]++] = from[i];
    uint64_t* swapped = from;
    from = to;
    to = swapped;
  }
  if (from != keys) memcpy(keys, from, static_cast<size_t>(count) * sizeof *keys);
}

}  // namespace

Order::Order(const float* logits, int64_t vocab, uint64_t* words)
    : logits_(logits), vocab_(vocab), keys_(words), spare_(words + vocab + 1), sample_(words + 2 * (vocab + 1)) {
  for (int64_t id = 0; id < vocab; id += kStride)
    if (logits[id] == logits[id]) sample_[num_sample_++] = key_of(logits[id], id);
  sort(sample_, num_sample_, spare_);
}

void Order::extend(int64_t wanted) {
  // A quarter more than the sample says, for it is one; still too few only costs another look.
  int64_t rank = 8 + wanted / kStride + wanted / (4 * kStride);
  while (size_ < wanted && !complete_) {
    const float low = rank < num_sample_ ? logit_of(sample_[rank]) : -__builtin_inff();
    rank *= 2;
    if (low < reached_) gather(low);
    complete_ = complete_ || low == -__builtin_inff();
  }
}

// Appends, sorted, what lies at or above `low` and below what was reached before.
void Order::gather(float low) {
  const Vec above = set1(reached_), least = set1(low);
  int64_t end = size_, id = 0;
  // Without a branch on a single logit: one that does not belong is written over by the next.
  const auto take = [&](int64_t i) {
    keys_[end] = key_of(logits_[i], i);
    end += (logits_[i] < reached_) & (logits_[i] >= low);
  };
  for (; id + kLanes <= vocab_; id += kLanes) {
    const Vec x = load(logits_ + id);
    if (!(lanes_of(less(x, above)) & ~lanes_of(less(x, least)))) continue;
    for (int64_t i = id; i < id + kLanes; i++) take(i);
  }
  for (; id < vocab_; id++) take(id);
  sort(keys_ + size_, end - size_, spare_);
  size_ = end;
  reached_ = low;
}

}  // namespace kvpact::KVPACT_ISA_NS
