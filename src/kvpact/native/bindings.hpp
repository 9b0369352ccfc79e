// What Python sees of the core, in parts.
#pragma once

#include <nanobind/nanobind.h>

namespace kvpact {

void bind_entries(nanobind::module_& m);
void bind_core(nanobind::module_& m);
void bind_sample(nanobind::module_& m);
void bind_bench(nanobind::module_& m);

}  // namespace kvpact
