#include "bindings.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "core.hpp"
#include "dispatch.hpp"
#include "entries_python.hpp"

namespace kvpact {
namespace {

using MaybeArray = std::optional<Array>;

std::vector<float> numbers(const MaybeArray& array, const char* name, int64_t count) {
  if (!array) return {};
  const float* data = checked<float>(*array, name, {count});
  return std::vector<float>(data, data + count);
}

// The core, and what of a step must outlive the call that brought it.
class PythonCore {
 public:
  PythonCore(int64_t hidden, int64_t inner, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, bool layer_norm, float norm_eps,
             int activation, bool gated, float scale, MaybeArray cos, MaybeArray sin, int num_threads)
      : core_(shape(hidden, inner, num_heads, num_kv_heads, head_dim, layer_norm, norm_eps, activation, gated, scale, cos, sin),
              select_kernels(), num_threads),
        cos_(cos), sin_(sin) {}

  Matrix pack(Array weight, MaybeArray bias) {
    const DType dtype = dtype_of(weight, "weight");
    check_shape(weight, "weight", {kAny, kAny});
    const auto out_features = static_cast<int64_t>(weight.shape(0)), in_features = static_cast<int64_t>(weight.shape(1));
    return core_.pack(weight.data(), out_features, in_features, dtype, numbers(bias, "bias", out_features));
  }

  void set_tables(Array embedding, MaybeArray positions, Matrix& head, Array norm_weight, MaybeArray norm_bias) {
    tables_ = {embedding};
    if (positions) tables_.push_back(*positions);
    vocab_ = static_cast<int64_t>(embedding.shape(0));
    core_.set_tables(table(embedding, "embedding"), positions ? table(*positions, "positions") : Table{}, std::move(head),
                     norm(norm_weight, norm_bias));
    if (positions) num_positions_ = static_cast<int64_t>(positions->shape(0));
  }

  void add_layer(Array attention_weight, MaybeArray attention_bias, Matrix& qkv, MaybeArray q_norm, MaybeArray k_norm, Matrix& out,
                 Array mlp_weight, MaybeArray mlp_bias, Matrix& up, Matrix& down) {
    LayerWeights layer;
    layer.attention_norm = norm(attention_weight, attention_bias);
    layer.mlp_norm = norm(mlp_weight, mlp_bias);
    layer.q_norm = numbers(q_norm, "q_norm", core_.shape().head_dim);
    layer.k_norm = numbers(k_norm, "k_norm", core_.shape().head_dim);
    layer.qkv = std::move(qkv);
    layer.out = std::move(out);
    layer.up = std::move(up);
    layer.down = std::move(down);
    core_.add_layer(std::move(layer));
  }

  // groups: of (query_start_loc, seq_lens, slot_mapping, block_table, rules), with the entries of one of the group's layers checked.
  void begin(const std::vector<nb::tuple>& groups, const std::vector<int>& group_of_layer, const std::vector<const Entries*>& entries,
             Array token_ids, Array positions) {
    const int64_t* ids = checked<int64_t>(token_ids, "token_ids", {kAny});
    const auto count = static_cast<int64_t>(token_ids.shape(0));
    const int64_t* where = checked<int64_t>(positions, "positions", {count});
    if (static_cast<int>(entries.size()) != core_.num_layers() || group_of_layer.size() != entries.size())
      throw nb::value_error((std::to_string(entries.size()) + " layers of entries for " + std::to_string(core_.num_layers()) + " layers").c_str());
    check_range(ids, count, 0, vocab_, "token_ids");
    check_range(where, count, 0, num_positions_, "positions");
    std::vector<StepArrays> arrays;
    std::vector<GroupStep> steps;
    for (size_t g = 0; g < groups.size(); g++) {
      const auto first = std::find(group_of_layer.begin(), group_of_layer.end(), static_cast<int>(g)) - group_of_layer.begin();
      const Entries& layer = *entries.at(static_cast<size_t>(first));
      const auto at = [&](int i) { return nb::cast<Array>(groups[g][i]); };
      arrays.push_back(checked_step(at(0), at(1), at(3), at(4), layer.storage));
      const Array slots = at(2);
      const int64_t* slot = checked<int64_t>(slots, "slot_mapping", {count});
      check_range(slot, count, -1, layer.num_slots(), "slot_mapping");
      const StepArrays& step = arrays.back();
      if (step.num_tokens != count)
        throw nb::value_error(("query_start_loc ends at " + std::to_string(step.num_tokens) + ", the step has " + std::to_string(count) + " tokens").c_str());
      steps.push_back(GroupStep{step.query_start, step.seq_lens, slot, step.block_table, step.table_stride, step.num_requests, nullptr});
    }
    arrays_ = std::move(arrays);
    for (size_t g = 0; g < steps.size(); g++) steps[g].rules = arrays_[g].rules.data();
    std::vector<EntryStorage> storage;
    for (const Entries* layer : entries) storage.push_back(layer->storage);
    nb::gil_scoped_release unlocked;
    core_.begin(steps, group_of_layer, std::move(storage), ids, where, count);
  }

  Core& core() { return core_; }

  nb::ndarray<nb::numpy, float> hidden() {
    return view(core_.rows(), core_.num_tokens(), core_.shape().hidden);
  }

  nb::ndarray<nb::numpy, float> queries() { return view(core_.queries(), core_.num_tokens(), query_width()); }
  nb::ndarray<nb::numpy, float> attended() { return view(core_.attended(), core_.num_tokens(), query_width()); }

  nb::ndarray<nb::numpy, float> logits(Array rows) {
    const int64_t* wanted = checked<int64_t>(rows, "rows", {kAny});
    const auto count = static_cast<int64_t>(rows.shape(0));
    check_range(wanted, count, 0, core_.num_tokens(), "rows");
    const float* data;
    {
      nb::gil_scoped_release unlocked;
      data = core_.logits(wanted, count);
    }
    return view(data, count, core_.vocab());
  }

 private:
  int64_t query_width() const { return core_.shape().num_heads * core_.shape().head_dim; }

  static nb::ndarray<nb::numpy, float> view(const float* data, int64_t rows, int64_t columns) {
    return nb::ndarray<nb::numpy, float>(const_cast<float*>(data), {static_cast<size_t>(rows), static_cast<size_t>(columns)}, nb::handle());
  }

  static Shape shape(int64_t hidden, int64_t inner, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, bool layer_norm,
                     float norm_eps, int activation, bool gated, float scale, const MaybeArray& cos, const MaybeArray& sin) {
    Shape s{hidden, inner, num_heads, num_kv_heads, head_dim, layer_norm, norm_eps, static_cast<Activation>(activation), gated, scale,
            nullptr, nullptr, 0};
    if (cos && sin) {
      s.cos = checked<float>(*cos, "cos", {kAny, head_dim / 2});
      s.num_positions = static_cast<int64_t>(cos->shape(0));
      s.sin = checked<float>(*sin, "sin", {s.num_positions, head_dim / 2});
    }
    return s;
  }

  Table table(const Array& array, const char* name) {
    const DType dtype = dtype_of(array, name);
    check_shape(array, name, {kAny, core_.shape().hidden});
    return Table{array.data(), static_cast<int64_t>(array.shape(0)), dtype};
  }

  Norm norm(const Array& weight, const MaybeArray& bias) {
    return Norm{numbers(weight, "norm weight", core_.shape().hidden), numbers(bias, "norm bias", core_.shape().hidden)};
  }

  Core core_;
  MaybeArray cos_, sin_;
  std::vector<Array> tables_;
  int64_t vocab_ = 0;
  int64_t num_positions_ = cos_ ? static_cast<int64_t>(cos_->shape(0)) : INT64_MAX;
  std::vector<StepArrays> arrays_;
};

template <void (Core::*Call)(int)>
void layer_call(PythonCore& python, int layer) {
  Core& core = python.core();
  if (layer < 0 || layer >= core.num_layers()) throw nb::index_error("no such layer");
  nb::gil_scoped_release unlocked;
  (core.*Call)(layer);
}

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
      .def("project", &layer_call<&Core::project>)
      .def("attend", &layer_call<&Core::attend>)
      .def("merge", &layer_call<&Core::merge>)
      .def("expand", &layer_call<&Core::expand>)
      .def("contract", &layer_call<&Core::contract>)
      .def("finish", [](PythonCore& self) { self.core().finish(); })
      .def("hidden", &PythonCore::hidden, nb::rv_policy::reference_internal)
      .def("queries", &PythonCore::queries, nb::rv_policy::reference_internal)
      .def("attended", &PythonCore::attended, nb::rv_policy::reference_internal)
      .def("logits", &PythonCore::logits, nb::arg("rows"), nb::rv_policy::reference_internal)
      .def("set_gate", [](PythonCore& self, bool checks) { self.core().set_gate(checks); })
      .def("gate_report", [](PythonCore& self) {
        const GateReport& report = self.core().gate_report();
        return nb::make_tuple(report.num_written, report.num_not_finite, report.first_bad_layer, report.first_bad_slot);
      })
      .def_prop_ro("num_allocations", [](PythonCore& self) { return self.core().num_allocations(); })
      .def_prop_ro("num_threads", [](PythonCore& self) { return self.core().threads().num_threads(); });
}

}  // namespace kvpact
