// The compiled core. It only says how it was built, because that is part of a cache entry's identity.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

#if defined(__FAST_MATH__)
#error "kvpact promises bits: fast-math must be off"
#endif

namespace {

const char *isa() {
#if defined(__AVX512F__)
    return "x86-64 avx512f";
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
    return "x86-64 avx2 fma f16c";
#elif defined(__x86_64__)
    return "x86-64";
#elif defined(__aarch64__)
    return "aarch64 neon";
#else
    return "generic";
#endif
}

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
    info["isa"] = isa();
    return info;
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "The compiled core of kvpact.";
    m.def("build_info", &build_info, "Compiler, flags, build type and the instruction set that the code is compiled for.");
}
