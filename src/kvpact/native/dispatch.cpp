#include "dispatch.hpp"

#include <cstdlib>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace kvpact {
namespace {

// AVX2, FMA and F16C in the processor, and a system that saves the wide registers.
bool find_avx2() {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  constexpr unsigned kFma = 1u << 12, kXsaveOn = 1u << 27, kAvx = 1u << 28, kF16c = 1u << 29, kAvx2 = 1u << 5;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return false;
  constexpr unsigned kNeeded = kFma | kXsaveOn | kAvx | kF16c;
  if ((c & kNeeded) != kNeeded) return false;
  unsigned saved, high;
  asm("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  if ((saved & 6u) != 6u) return false;  // bits 1 and 2: SSE and AVX state
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & kAvx2);
#else
  return false;
#endif
}

// Asked once: under a hypervisor each CPUID costs as much as a small kernel.
bool has_avx2() {
  static const bool found = find_avx2();
  return found;
}

}  // namespace

const Kernels& select_kernels() {
  const char* wanted = std::getenv("KVPACT_ISA");
  const std::string name = wanted ? wanted : "";
  if (name == "baseline") return baseline::table();
  if (name == "avx2") {
    if (has_avx2()) return avx2::table();
    throw std::runtime_error("KVPACT_ISA is avx2, but this machine lacks AVX2, FMA or F16C; unset it, or set it to baseline");
  }
  if (!name.empty()) throw std::runtime_error("KVPACT_ISA is '" + name + "'; it can be avx2 or baseline");
  return has_avx2() ? avx2::table() : baseline::table();
}

}  // namespace kvpact
