// A whole decoder of two layers: a request's bits are its own in any company, with any chunks and threads; buffers stop growing; the gate
// sees what is not finite; a step without tokens is one.
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "../core.hpp"
#include "../dispatch.hpp"
#include "check.hpp"

using namespace kvpact;

namespace {

constexpr int64_t kHidden = 32, kInner = 44, kHeads = 4, kKvHeads = 2, kDim = 8, kVocab = 50, kPositions = 256;
constexpr int64_t kBlockSize = 8, kBlocksOfRequest = kPositions / kBlockSize, kRequests = 4;
constexpr int kLayers = 2;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  float next() {  // in [-1, 1)
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<float>(static_cast<int64_t>(state_) >> 40) / 8388608.0f;
  }
  std::vector<float> numbers(int64_t count, float scale = 1) {
    std::vector<float> all(static_cast<size_t>(count));
    for (float& x : all) x = scale * next();
    return all;
  }

 private:
  uint64_t state_;
};

// A decoder with weights that are a function of nothing, and memory for the entries of kRequests requests.
class Model {
 public:
  Model(const Kernels& kernels, int num_threads) : random_(3) {
    const int64_t half = kDim / 2;
    cos_.resize(static_cast<size_t>(kPositions * half));
    sin_ = cos_;
    const std::vector<float> frequency = {1, 0.1f, 0.01f, 0.001f};
    kernels.rotary_table(frequency.data(), half, 0, kPositions, 1, cos_.data(), sin_.data());
    const Shape shape{kHidden, kInner, kHeads, kKvHeads, kDim, false, 1e-5f, Activation::silu, true, 1 / std::sqrt(8.0f),
                      cos_.data(), sin_.data(), kPositions};
    core = std::make_unique<Core>(shape, kernels, num_threads);
    embedding = random_.numbers(kVocab * kHidden);
    core->set_tables(Table{embedding.data(), kVocab, DType::f32}, Table{}, matrix(kVocab, kHidden), norm(kHidden));
    for (int layer = 0; layer < kLayers; layer++) {
      LayerWeights weights;
      weights.attention_norm = norm(kHidden);
      weights.mlp_norm = norm(kHidden);
      weights.q_norm = random_.numbers(kDim);
      weights.k_norm = random_.numbers(kDim);
      weights.qkv = matrix((kHeads + 2 * kKvHeads) * kDim, kHidden);
      weights.out = matrix(kHidden, kHeads * kDim);
      weights.up = matrix(2 * kInner, kHidden);
      weights.down = matrix(kHidden, kInner);
      core->add_layer(std::move(weights));
      memory_.emplace_back(static_cast<size_t>(2 * kNumbers));
    }
  }

  std::vector<EntryStorage> entries() {
    std::vector<EntryStorage> all;
    for (std::vector<float>& memory : memory_)
      all.push_back(EntryStorage{memory.data(), memory.data() + kNumbers, kBlockSize * kKvHeads * kDim, kBlockSize * kDim, kBlockSize,
                                 kRequests * kBlocksOfRequest, kKvHeads, kDim, DType::f32});
    return all;
  }

  std::unique_ptr<Core> core;
  std::vector<float> embedding;

 private:
  static constexpr int64_t kNumbers = kRequests * kBlocksOfRequest * kBlockSize * kKvHeads * kDim;

  Matrix matrix(int64_t out, int64_t in) {
    const std::vector<float> weight = random_.numbers(out * in, 0.4f);
    return core->pack(weight.data(), out, in, DType::f32, random_.numbers(out, 0.1f));
  }
  Norm norm(int64_t width) { return Norm{random_.numbers(width), {}}; }

  Random random_;
  std::vector<float> cos_, sin_;
  std::vector<std::vector<float>> memory_;
};

// Part of a request in a step: its next `count` tokens. Which request it is says where its blocks lie and what its tokens are.
struct Part {
  int64_t request, start, count;
};

int64_t token_at(int64_t request, int64_t position) { return (7 * request + 13 * position + position * position) % kVocab; }

// A step's arrays, alive until the step ends.
struct Step {
  std::vector<int64_t> query_start{0}, seq_lens, slots, block_table, ids, positions;
  std::vector<Rule> rules;

  // A request's blocks lie in an order of its own: `turn` moves them all to other places.
  Step(const std::vector<Part>& parts, int64_t turn) {
    for (const Part& part : parts) {
      query_start.push_back(query_start.back() + part.count);
      seq_lens.push_back(part.start + part.count);
      rules.push_back(Rule{0, 0, 0, 1});
      for (int64_t b = 0; b < kBlocksOfRequest; b++) block_table.push_back(block(part.request, b, turn));
      for (int64_t p = part.start; p < part.start + part.count; p++) {
        slots.push_back(block(part.request, p / kBlockSize, turn) * kBlockSize + p % kBlockSize);
        ids.push_back(token_at(part.request, p));
        positions.push_back(p);
      }
    }
  }
  static int64_t block(int64_t request, int64_t b, int64_t turn) {
    return (request * kBlocksOfRequest + 5 * b % kBlocksOfRequest + turn) % (kRequests * kBlocksOfRequest);
  }
  int64_t num_tokens() const { return static_cast<int64_t>(ids.size()); }
};

void run(Model& model, const Step& step) {
  const GroupStep group{step.query_start.data(), step.seq_lens.data(), step.slots.data(), step.block_table.data(), kBlocksOfRequest,
                        static_cast<int64_t>(step.seq_lens.size()), step.rules.data()};
  model.core->begin({group}, std::vector<int>(kLayers, 0), model.entries(), step.ids.data(), step.positions.data(), step.num_tokens());
  for (int layer = 0; layer < kLayers; layer++) {
    model.core->project(layer);
    model.core->attend(layer);
    model.core->merge(layer);
    model.core->expand(layer);
    model.core->contract(layer);
  }
  model.core->finish();
}

// Logits of the step's rows, appended to each request's own.
void collect(Model& model, const std::vector<Part>& parts, std::vector<std::vector<float>>& logits) {
  int64_t row = 0;
  for (const Part& part : parts) {
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < part.count; i++) rows.push_back(row++);
    const float* from = model.core->logits(rows.data(), part.count).data();
    auto& mine = logits[static_cast<size_t>(part.request)];
    mine.insert(mine.end(), from, from + part.count * kVocab);
  }
}

std::vector<std::vector<float>> logits_of(const Kernels& kernels, int num_threads, const std::vector<std::vector<Part>>& steps, int64_t turn) {
  Model model(kernels, num_threads);
  std::vector<std::vector<float>> logits(kRequests);
  for (const std::vector<Part>& parts : steps) {
    run(model, Step(parts, turn));
    collect(model, parts, logits);
  }
  return logits;
}

void check_company(const Kernels& kernels) {
  constexpr int64_t kLength = 70;
  const auto alone = logits_of(kernels, 1, {{{1, 0, kLength}}}, 0)[1];
  for (float x : alone) CHECK(std::isfinite(x), "a logit is %g", double(x));
  // Whole among others, in chunks of many sizes, and token by token beside a long prompt.
  const std::vector<std::vector<std::vector<Part>>> ways = {
      {{{0, 0, 130}, {1, 0, kLength}, {2, 0, 1}, {3, 0, 9}}},
      {{{1, 0, 1}}, {{3, 0, 200}, {1, 1, 3}}, {{1, 4, 17}, {0, 0, 5}}, {{2, 0, 90}, {1, 21, kLength - 21}}},
  };
  for (int num_threads : {1, 2})
    for (const auto& way : ways)
      for (int64_t turn : {0, 11}) {
        const auto mine = logits_of(kernels, num_threads, way, turn)[1];
        CHECK(mine.size() == alone.size(), "%zu logits, not %zu", mine.size(), alone.size());
        CHECK(!std::memcmp(mine.data(), alone.data(), alone.size() * sizeof(float)), "%s: bits differ in company, %d threads", kernels.isa,
              num_threads);
      }
  const auto other = logits_of(kernels, 1, {{{2, 0, kLength}}}, 0)[2];
  CHECK(std::memcmp(other.data(), alone.data(), alone.size() * sizeof(float)), "two requests have the same logits: nothing was compared");
}

void check_buffers_stop_growing(const Kernels& kernels) {
  Model model(kernels, 2);
  std::vector<std::vector<float>> logits(kRequests);
  const std::vector<Part> largest = {{0, 0, 120}, {1, 0, 60}};
  run(model, Step(largest, 0));
  collect(model, largest, logits);
  const std::shared_ptr<float> kept = model.core->rows().share();
  const int64_t after = model.core->num_allocations();
  CHECK(after > 0, "growth is not counted");
  for (int64_t p = 0; p < 8; p++) {
    const std::vector<Part> parts = {{0, 120 + p, 1}, {1, 60 + p, 1}, {2, 20 * p, 20}};
    run(model, Step(parts, 0));
    collect(model, parts, logits);
  }
  CHECK(model.core->num_allocations() == after, "%lld buffers grew in smaller steps", static_cast<long long>(model.core->num_allocations() - after));
  run(model, Step({{3, 0, 200}}, 0));
  CHECK(model.core->num_allocations() > after, "a larger step has counted no growth");
  CHECK(std::isfinite(kept.get()[120 * kHidden]), "what is shared went away as the buffer grew");
}

void check_gate(const Kernels& kernels) {
  Model model(kernels, 2);
  const Step step({{0, 0, 150}, {1, 0, 40}}, 0);
  run(model, step);
  CHECK(model.core->gate_report().num_not_finite == 0 && model.core->gate_report().first_bad_slot == -1, "a clean step was reported");
  CHECK(model.core->gate_report().num_written == kLayers * 190, "not every row was looked at");
  int64_t first = 30;  // the NaN comes with a token, and the first row that holds it names the slot
  const int64_t bad = step.ids[static_cast<size_t>(first)];
  model.embedding[static_cast<size_t>(bad * kHidden)] = std::numeric_limits<float>::quiet_NaN();
  for (first = 0; step.ids[static_cast<size_t>(first)] != bad;) first++;
  run(model, step);
  const GateReport report = model.core->gate_report();
  CHECK(report.num_not_finite > 0 && report.first_bad_layer == 0, "the NaN was not seen");
  CHECK(report.first_bad_slot == step.slots[static_cast<size_t>(first)], "slot %lld was named, not %lld",
        static_cast<long long>(report.first_bad_slot), static_cast<long long>(step.slots[static_cast<size_t>(first)]));
  model.core->set_gate(false);
  run(model, step);
  CHECK(model.core->gate_report().num_not_finite == 0 && model.core->gate_report().num_written == 0, "a gate that is off has looked");
}

void check_empty_step(const Kernels& kernels) {
  Model model(kernels, 2);
  run(model, Step(std::vector<Part>{}, 0));
  model.core->logits(nullptr, 0);
  run(model, Step({{0, 0, 3}, {1, 0, 0}}, 0));
  CHECK(std::isfinite(model.core->rows().data()[0]), "a step after an empty one went wrong");
}

}  // namespace

int main() {
  std::vector<const Kernels*> builds = {&baseline::table()};
  if (&select_kernels() != builds[0]) builds.push_back(&select_kernels());
  for (const Kernels* kernels : builds) {
    check_company(*kernels);
    check_buffers_stop_growing(*kernels);
    check_gate(*kernels);
    check_empty_step(*kernels);
  }
  return tests::result("core");
}
