// The core as Python sees it. Everything is checked here, before the core, which trusts its callers, may see it.
#include "bindings.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "core.hpp"
#include "dispatch.hpp"
#include "entries_python.hpp"

namespace kvpact {
namespace {

using MaybeArray = std::optional<Array>;
using Rows = nb::ndarray<nb::numpy, float>;

[[noreturn]] void refuse(const std::string& what) { throw nb::value_error(what.c_str()); }

std::vector<float> numbers(const MaybeArray& array, const char* name, int64_t count) {
  if (!array) return {};
  const float* data = checked<float>(*array, name, {count});
  return std::vector<float>(data, data + count);
}

// Moves the weights out. A matrix that was taken before would leave its second owner with a pointer into the first one's memory.
Matrix take(Matrix& matrix, const char* name, int64_t out_features, int64_t in_features) {
  if (!matrix.memory.data()) refuse(std::string(name) + " was moved into a core before: pack it again");
  const PackedLinear& packed = matrix.packed;
  if ((out_features != kAny && packed.out_features != out_features) || packed.in_features != in_features)
    refuse(std::string(name) + " has shape [" + std::to_string(packed.out_features) + ", " + std::to_string(packed.in_features) +
           "], expected [" + (out_features == kAny ? "any" : std::to_string(out_features)) + ", " + std::to_string(in_features) + "]");
  return std::move(matrix);
}

Shape checked_shape(Shape s, int activation, const MaybeArray& cos, const MaybeArray& sin) {
  for (int64_t size : {s.hidden, s.inner, s.num_heads, s.num_kv_heads, s.head_dim})
    if (size < 1) refuse("a size of the decoder is " + std::to_string(size) + ", must be at least 1");
  if (s.num_heads % s.num_kv_heads || s.num_heads / s.num_kv_heads > kMaxRows)
    refuse(std::to_string(s.num_heads) + " query heads can't share " + std::to_string(s.num_kv_heads) + " key heads, or more than " +
           std::to_string(kMaxRows) + " share one");
  if (s.head_dim % 8 || s.head_dim > kMaxHeadDim)
    refuse("head_dim is " + std::to_string(s.head_dim) + ", must be a multiple of 8, at most " + std::to_string(kMaxHeadDim));
  if (activation < 0 || activation > static_cast<int>(Activation::gelu_tanh)) refuse("no activation " + std::to_string(activation));
  s.activation = static_cast<Activation>(activation);
  if (cos.has_value() != sin.has_value()) refuse("cos and sin come together or not at all");
  if (!cos) return s;
  s.cos = checked<float>(*cos, "cos", {kAny, s.head_dim / 2});
  s.num_positions = static_cast<int64_t>(cos->shape(0));
  s.sin = checked<float>(*sin, "sin", {s.num_positions, s.head_dim / 2});
  return s;
}

// The core, and what must outlive the calls that brought it: tables, and the arrays and entries of the step under way.
class PythonCore {
 public:
  PythonCore(int64_t hidden, int64_t inner, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, bool layer_norm, float norm_eps,
             int activation, bool gated, float scale, MaybeArray cos, MaybeArray sin, int num_threads)
      : core_(checked_shape(Shape{hidden, inner, num_heads, num_kv_heads, head_dim, layer_norm, norm_eps, Activation::silu, gated, scale,
                                  nullptr, nullptr, 0},
                            activation, cos, sin),
              select_kernels(), num_threads),
        cos_(cos), sin_(sin), num_positions_(cos ? core_.shape().num_positions : INT64_MAX) {}

  Matrix pack(Array weight, MaybeArray bias) {
    const Use use(*this);
    const DType dtype = dtype_of(weight, "weight");
    check_shape(weight, "weight", {kAny, kAny});
    const auto out_features = static_cast<int64_t>(weight.shape(0)), in_features = static_cast<int64_t>(weight.shape(1));
    if (!out_features || !in_features) refuse("weight has shape " + shape_text(weight) + ": it is empty");
    std::vector<float> added = numbers(bias, "bias", out_features);
    nb::gil_scoped_release unlocked;
    return core_.pack(weight.data(), out_features, in_features, dtype, std::move(added));
  }

  void set_tables(Array embedding, MaybeArray positions, Matrix& head, Array norm_weight, MaybeArray norm_bias) {
    const Use use(*this);
    stepping_ = false;
    const Table tokens = table(embedding, "embedding"), places = positions ? table(*positions, "positions") : Table{};
    Norm final_norm = norm(norm_weight, norm_bias);
    core_.set_tables(tokens, places, take(head, "head", kAny, core_.shape().hidden), std::move(final_norm));
    tables_ = {embedding};
    if (positions) tables_.push_back(*positions);
    vocab_ = tokens.rows;
    if (positions) num_positions_ = std::min(num_positions_, places.rows);
  }

  void add_layer(Array attention_weight, MaybeArray attention_bias, Matrix& qkv, MaybeArray q_norm, MaybeArray k_norm, Matrix& out,
                 Array mlp_weight, MaybeArray mlp_bias, Matrix& up, Matrix& down) {
    const Use use(*this);
    stepping_ = false;
    const Shape& s = core_.shape();
    if (q_norm.has_value() != k_norm.has_value()) refuse("q_norm and k_norm come together or not at all");
    LayerWeights layer;
    layer.attention_norm = norm(attention_weight, attention_bias);
    layer.mlp_norm = norm(mlp_weight, mlp_bias);
    layer.q_norm = numbers(q_norm, "q_norm", s.head_dim);
    layer.k_norm = numbers(k_norm, "k_norm", s.head_dim);
    layer.qkv = take(qkv, "qkv", (s.num_heads + 2 * s.num_kv_heads) * s.head_dim, s.hidden);
    layer.out = take(out, "out", s.hidden, s.num_heads * s.head_dim);
    layer.up = take(up, "up", s.inner * (s.gated ? 2 : 1), s.hidden);
    layer.down = take(down, "down", s.hidden, s.inner);
    core_.add_layer(std::move(layer));
  }

  // groups: of (query_start_loc, seq_lens, slot_mapping, block_table, rules). entries: of each layer. Raises before anything is written.
  void begin(const std::vector<nb::tuple>& groups, const std::vector<int>& group_of_layer, nb::typed<nb::sequence, Entries> entries,
             Array token_ids, Array positions) {
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

  template <void (Core::*Call)(int)>
  void layer_call(int layer) {
    const Use use(*this);
    check_begun();
    if (layer < 0 || layer >= core_.num_layers()) throw nb::index_error("no such layer");
    nb::gil_scoped_release unlocked;
    (core_.*Call)(layer);
  }

  void finish() {
    const Use use(*this);
    check_begun();
    nb::gil_scoped_release unlocked;
    core_.finish();
  }

  Rows hidden() {
    const Use use(*this);
    check_begun();
    return view(core_.rows(), core_.num_tokens(), core_.shape().hidden);
  }

  // A layer's queries from `project` on, and what they attended to from `attend` on: [T, num_heads * head_dim].
  Rows queries() {
    const Use use(*this);
    check_begun();
    return view(core_.queries(), core_.num_tokens(), core_.shape().num_heads * core_.shape().head_dim);
  }

  Rows attended() {
    const Use use(*this);
    check_begun();
    return view(core_.attended(), core_.num_tokens(), core_.shape().num_heads * core_.shape().head_dim);
  }

  Rows logits(Array rows) {
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

  Core& core() { return core_; }

 private:
  // One call at a time: the GIL is released inside, and a second thread would write into the same workspace.
  class Use {
   public:
    explicit Use(PythonCore& core) : used_(core.used_) {
      if (used_.exchange(true)) throw std::runtime_error("the core is in use by another thread: each thread needs a core of its own");
    }
    ~Use() { used_ = false; }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    std::atomic<bool>& used_;
  };

  void check_begun() const {
    if (!stepping_) throw std::runtime_error("no step is under way: call begin first");
  }

  // Every layer's entries fit the decoder; the layers of a group share its slots, so they have equally many blocks.
  void check_layers(const std::vector<EntryStorage>& storage, const std::vector<int>& group_of_layer, size_t num_groups) const {
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

  // The numbers where they lie. The memory stays as long as the array does; the next step writes into it.
  static Rows view(const Buffer& buffer, int64_t rows, int64_t columns) {
    const auto owner = new std::shared_ptr<float>(buffer.share());
    nb::capsule capsule(owner, [](void* p) noexcept { delete static_cast<std::shared_ptr<float>*>(p); });
    return Rows(buffer.data(), {static_cast<size_t>(rows), static_cast<size_t>(columns)}, capsule);
  }

  Table table(const Array& array, const char* name) const {
    const DType dtype = dtype_of(array, name);
    check_shape(array, name, {kAny, core_.shape().hidden});
    return Table{array.data(), static_cast<int64_t>(array.shape(0)), dtype};
  }

  Norm norm(const Array& weight, const MaybeArray& bias) const {
    return Norm{numbers(weight, "norm weight", core_.shape().hidden), numbers(bias, "norm bias", core_.shape().hidden)};
  }

  Core core_;
  MaybeArray cos_, sin_;
  std::vector<Array> tables_;
  int64_t vocab_ = 0, num_positions_;
  std::vector<StepArrays> arrays_;
  nb::object kept_;
  std::atomic<bool> used_{false};
  bool stepping_ = false;
};

}  // namespace

void bind_core(nb::module_& m) {
  nb::class_<Matrix>(m, "Matrix", "Packed weights; moved into the core by the call that takes them.");
  nb::class_<PythonCore>(m, "Core", "One decoder: packed weights, workspace, the plan of the step under way.")
      .def(nb::init<int64_t, int64_t, int64_t, int64_t, int64_t, bool, float, int, bool, float, MaybeArray, MaybeArray, int>(),
           nb::kw_only(), nb::arg("hidden_size"), nb::arg("intermediate_size"), nb::arg("num_heads"), nb::arg("num_kv_heads"),
           nb::arg("head_dim"), nb::arg("layer_norm"), nb::arg("norm_eps"), nb::arg("activation"), nb::arg("gated"), nb::arg("scale"),
           nb::arg("cos").none(), nb::arg("sin").none(), nb::arg("num_threads"))
      .def("pack", &PythonCore::pack, nb::arg("weight"), nb::arg("bias").none())
      .def("set_tables", &PythonCore::set_tables, nb::arg("embedding"), nb::arg("positions").none(), nb::arg("head"),
           nb::arg("norm_weight"), nb::arg("norm_bias").none())
      .def("add_layer", &PythonCore::add_layer, nb::kw_only(), nb::arg("attention_weight"), nb::arg("attention_bias").none(), nb::arg("qkv"),
           nb::arg("q_norm").none(), nb::arg("k_norm").none(), nb::arg("out"), nb::arg("mlp_weight"), nb::arg("mlp_bias").none(),
           nb::arg("up"), nb::arg("down"))
      .def("begin", &PythonCore::begin, nb::arg("groups"), nb::arg("group_of_layer"), nb::arg("entries"), nb::arg("token_ids"),
           nb::arg("positions"))
      .def("project", &PythonCore::layer_call<&Core::project>)
      .def("attend", &PythonCore::layer_call<&Core::attend>)
      .def("merge", &PythonCore::layer_call<&Core::merge>)
      .def("expand", &PythonCore::layer_call<&Core::expand>)
      .def("contract", &PythonCore::layer_call<&Core::contract>)
      .def("finish", &PythonCore::finish)
      .def("hidden", &PythonCore::hidden, "[T, hidden]; the next step writes into it: copy what is to be kept.")
      .def("queries", &PythonCore::queries)
      .def("attended", &PythonCore::attended)
      .def("logits", &PythonCore::logits, nb::arg("rows"), "[rows, vocab]; the next call writes into it: copy what is to be kept.")
      .def("set_gate", [](PythonCore& self, bool checks) { self.core().set_gate(checks); })
      .def("gate_report", [](PythonCore& self) {
        const GateReport& report = self.core().gate_report();
        return nb::make_tuple(report.num_written, report.num_not_finite, report.first_bad_layer, report.first_bad_slot);
      })
      .def("enable_ranges", [](PythonCore& self, bool on) { self.core().ranges().enable(on); }, "Starts from zero.")
      .def("ranges", [](PythonCore& self) {
        nb::dict totals;
        for (size_t i = 0; i < kRangeNames.size(); i++) {
          const RangeTotal& total = self.core().ranges().totals()[i];
          totals[kRangeNames[i]] = nb::make_tuple(total.count, total.nanoseconds);
        }
        return totals;
      }, "By name: how often a range was entered, and nanoseconds in it, since enable_ranges(True).")
      .def_prop_ro("num_allocations", [](PythonCore& self) { return self.core().num_allocations(); })
      .def_prop_ro("num_threads", [](PythonCore& self) { return self.core().threads().num_threads(); });
}

}  // namespace kvpact
