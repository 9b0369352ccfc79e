// The compiled core. How it was built is part of a cache entry's identity.
#include <nanobind/nanobind.h>

#include "bindings.hpp"
#include "dispatch.hpp"

namespace nb = nanobind;

#if defined(__FAST_MATH__)
#error "kvpact promises bits: fast-math must be off"
#endif

namespace {

const char *compiler() {
#if defined(__clang__)
    return "clang " __clang_version__;
#elif defined(__GNUC__)
    return "gcc " __VERSION__;
#else
    return "unknown";
#endif
}

nb::dict build_info() {
    nb::dict info;
    info["compiler"] = compiler();
    info["flags"] = KVPACT_FLAGS;
    info["build_type"] = KVPACT_BUILD_TYPE;
    info["isa"] = kvpact::select_kernels().isa;
    return info;
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "The compiled core of kvpact.";
    kvpact::bind_entries(m);
    kvpact::bind_core(m);
    kvpact::bind_sample(m);
    kvpact::bind_bench(m);
    m.def("build_info", &build_info, "Compiler, flags, build type and the instruction set that was chosen.");
}
