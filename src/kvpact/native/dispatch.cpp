#include "dispatch.hpp"

#include <array>
#include <cstdlib>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace kvpact {
namespace {

// Of CPUID: leaf 1 (ECX), leaf 7 (EBX), and the register state that the system saves.
struct Features {
  unsigned basic = 0, extended = 0, saved = 0;
};

Features ask_processor() {
  Features found;
#if defined(__x86_64__)
  unsigned a, b, c, d;
  constexpr unsigned kXsaveOn = 1u << 27;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kXsaveOn)) return found;
  found.basic = c;
  unsigned high;
  asm("xgetbv" : "=a"(found.saved), "=d"(high) : "c"(0));
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) found.extended = b;
#endif
  return found;
}

// Asked once: under a hypervisor each CPUID costs as much as a small kernel.
const Features& features() {
  static const Features found = ask_processor();
  return found;
}

bool has(unsigned bits, unsigned needed) { return (bits & needed) == needed; }

bool has_avx2() {
  constexpr unsigned kFma = 1u << 12, kAvx = 1u << 28, kF16c = 1u << 29, kAvx2 = 1u << 5, kVectorState = 0x6u;
  const Features& found = features();
  return has(found.basic, kFma | kAvx | kF16c) && has(found.extended, kAvx2) && has(found.saved, kVectorState);
}

bool has_avx512() {
  constexpr unsigned kF = 1u << 16, kVl = 1u << 31, kUpperState = 0xe0u;
  return has_avx2() && has(features().extended, kF | kVl) && has(features().saved, kUpperState);
}

bool always() { return true; }

struct Build {
  const char* name;
  bool (*runs_here)();
  const Kernels& (*table)();
  const char* needs;
};

// Best first.
constexpr std::array<Build, 3> kBuilds = {Build{"avx512", has_avx512, avx512::table, "AVX-512 F or VL"},
                                          Build{"avx2", has_avx2, avx2::table, "AVX2, FMA or F16C"},
                                          Build{"baseline", always, baseline::table, "nothing"}};

}  // namespace

const Kernels& select_kernels() {
  const char* wanted = std::getenv("KVPACT_ISA");
  const std::string name = wanted ? wanted : "";
  for (const Build& build : kBuilds) {
    if (!name.empty() && name != build.name) continue;
    if (build.runs_here()) return build.table();
    if (!name.empty())
      throw std::runtime_error("KVPACT_ISA is " + name + ", but this machine lacks " + build.needs + "; unset it, or set it to baseline");
  }
  throw std::runtime_error("KVPACT_ISA is '" + name + "'; it can be avx512, avx2 or baseline");
}

}  // namespace kvpact
