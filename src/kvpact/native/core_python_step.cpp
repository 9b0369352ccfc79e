// A step as Python hands it over, checked before anything is written, and its numbers where they lie.
#include "core_python.hpp"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>

namespace kvpact {
namespace {

// The numbers where they lie. The memory stays as long as the array does; the next step writes into it.
Rows view(const Buffer& buffer, int64_t rows, int64_t columns) {
  const auto owner = new std::shared_ptr<float>(buffer.share());
  nb::capsule capsule(owner, [](void* p) noexcept { delete static_cast<std::shared_ptr<float>*>(p); });
  return Rows(buffer.data(), {static_cast<size_t>(rows), static_cast<size_t>(columns)}, capsule);
}

}  // namespace

void PythonCore::begin(const std::vector<nb::tuple>& groups, const std::vector<int>& group_of_layer,
                       nb::typed<nb::sequence, Entries> entries, Array token_ids, Array positions) {
  const Use use(*this);
  stepping_ = false;
  const int64_t* ids = checked<int64_t>(token_ids, "token_ids", {kAny});
  const auto count = static_cast<int64_t>(token_ids.shape(0));
  const int64_t* where = checked<int64_t>(positions, "positions", {count});
  check_range(ids, count, 0, vocab_, "token_ids");
  check_range(where, count, 0, num_positions_, "positions");
  std::vector<EntryStorage> storage;
  for (nb::handle layer : entries) storage.push_back(nb::cast<const Entries&>(layer).storage);
  check_layers(storage, group_of_layer, groups.size());
  std::vector<StepArrays> arrays;
  std::vector<GroupStep> steps;
  for (size_t g = 0; g < groups.size(); g++) {
    const auto first = std::find(group_of_layer.begin(), group_of_layer.end(), static_cast<int>(g)) - group_of_layer.begin();
    const EntryStorage& layer = storage[static_cast<size_t>(first)];
    const auto at = [&](int i) { return nb::cast<Array>(groups[g][i]); };
    arrays.push_back(checked_step(at(0), at(1), at(3), at(4), layer));
    const StepArrays& step = arrays.back();
    const int64_t* slots = checked<int64_t>(at(2), "slot_mapping", {count});
    check_range(slots, count, -1, layer.num_blocks * layer.block_size, "slot_mapping");
    if (step.num_tokens != count)
      refuse("query_start_loc ends at " + std::to_string(step.num_tokens) + ", the step has " + std::to_string(count) + " tokens");
    steps.push_back(GroupStep{step.query_start, step.seq_lens, slots, step.block_table, step.table_stride, step.num_requests, nullptr});
  }
  arrays_ = std::move(arrays);
  for (size_t g = 0; g < steps.size(); g++) steps[g].rules = arrays_[g].rules.data();
  kept_ = nb::make_tuple(nb::cast(groups), nb::tuple(entries));
  nb::gil_scoped_release unlocked;
  core_.begin(steps, group_of_layer, std::move(storage), ids, where, count);
  stepping_ = true;
}

// Every layer's entries fit the decoder; the layers of a group share its slots, so they have equally many blocks.
void PythonCore::check_layers(const std::vector<EntryStorage>& storage, const std::vector<int>& group_of_layer, size_t num_groups) const {
  const auto num_layers = static_cast<size_t>(core_.num_layers());
  if (storage.size() != num_layers || group_of_layer.size() != num_layers)
    refuse(std::to_string(storage.size()) + " layers of entries in " + std::to_string(group_of_layer.size()) + " places for " +
           std::to_string(num_layers) + " layers");
  std::vector<const EntryStorage*> first(num_groups, nullptr);
  for (size_t i = 0; i < num_layers; i++) {
    const EntryStorage& layer = storage[i];
    const std::string name = "layer " + std::to_string(i);
    if (group_of_layer[i] < 0 || static_cast<size_t>(group_of_layer[i]) >= num_groups)
      refuse(name + " is in group " + std::to_string(group_of_layer[i]) + " of " + std::to_string(num_groups));
    if (layer.num_kv_heads != core_.shape().num_kv_heads || layer.head_dim != core_.shape().head_dim)
      refuse(name + " has entries of " + std::to_string(layer.num_kv_heads) + " heads of " + std::to_string(layer.head_dim) +
             ", the decoder " + std::to_string(core_.shape().num_kv_heads) + " of " + std::to_string(core_.shape().head_dim));
    const EntryStorage*& same = first[static_cast<size_t>(group_of_layer[i])];
    if (!same) same = &layer;
    if (layer.num_blocks != same->num_blocks || layer.block_size != same->block_size)
      refuse(name + " has " + std::to_string(layer.num_blocks) + " blocks of " + std::to_string(layer.block_size) +
             ", another layer of its group " + std::to_string(same->num_blocks) + " of " + std::to_string(same->block_size));
  }
  for (size_t g = 0; g < num_groups; g++)
    if (!first[g]) refuse("group " + std::to_string(g) + " has no layer");
}

void PythonCore::finish() {
  const Use use(*this);
  check_open();
  {
    nb::gil_scoped_release unlocked;
    core_.finish();
  }
  kept_.reset();
}

Rows PythonCore::hidden() {
  const Use use(*this);
  check_begun();
  return view(core_.rows(), core_.num_tokens(), core_.shape().hidden);
}

Rows PythonCore::queries() {
  const Use use(*this);
  check_begun();
  return view(core_.queries(), core_.num_tokens(), core_.shape().num_heads * core_.shape().head_dim);
}

Rows PythonCore::attended() {
  const Use use(*this);
  check_begun();
  return view(core_.attended(), core_.num_tokens(), core_.shape().num_heads * core_.shape().head_dim);
}

Rows PythonCore::logits(Array rows) {
  const Use use(*this);
  check_begun();
  const int64_t* wanted = checked<int64_t>(rows, "rows", {kAny});
  const auto count = static_cast<int64_t>(rows.shape(0));
  check_range(wanted, count, 0, core_.num_tokens(), "rows");
  const Buffer* result;
  {
    nb::gil_scoped_release unlocked;
    result = &core_.logits(wanted, count);
  }
  return view(*result, count, core_.vocab());
}

}  // namespace kvpact
