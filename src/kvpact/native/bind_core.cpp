// The names under which Python finds the core.
#include "bindings.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "core_python.hpp"

namespace kvpact {
namespace {

// nanobind hands over the memory; the arguments' order is the order of the names below.
void construct(PythonCore* self, int64_t hidden, int64_t inner, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
               bool layer_norm, float norm_eps, int activation, bool gated, float scale, MaybeArray cos, MaybeArray sin, int num_threads) {
  new (self) PythonCore(Shape{hidden, inner, num_heads, num_kv_heads, head_dim, layer_norm, norm_eps, Activation::silu, gated, scale,
                              nullptr, nullptr, 0},
                        activation, cos, sin, num_threads);
}

}  // namespace

void bind_core(nb::module_& m) {
  nb::class_<Matrix>(m, "Matrix", "Packed weights; moved into the core by the call that takes them.");
  nb::class_<PythonCore>(m, "Core", "One decoder: packed weights, workspace, the plan of the step under way.")
      .def("__init__", &construct, nb::kw_only(), nb::arg("hidden_size"), nb::arg("intermediate_size"), nb::arg("num_heads"),
           nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("layer_norm"), nb::arg("norm_eps"), nb::arg("activation"), nb::arg("gated"),
           nb::arg("scale"), nb::arg("cos").none(), nb::arg("sin").none(), nb::arg("num_threads"))
      .def("pack", &PythonCore::pack, nb::arg("weight"), nb::arg("bias").none())
      .def("set_tables", &PythonCore::set_tables, nb::arg("embedding"), nb::arg("positions").none(), nb::arg("head"),
           nb::arg("norm_weight"), nb::arg("norm_bias").none())
      .def("add_layer", &PythonCore::add_layer, nb::kw_only(), nb::arg("attention_weight"), nb::arg("attention_bias").none(),
           nb::arg("qkv"), nb::arg("q_norm").none(), nb::arg("k_norm").none(), nb::arg("out"), nb::arg("mlp_weight"),
           nb::arg("mlp_bias").none(), nb::arg("up"), nb::arg("down"))
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
