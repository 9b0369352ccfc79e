// The few words that the tests of the native core are written in: plain programs that return nonzero on failure.
#pragma once

#include <cstdio>

namespace kvpact::tests {

inline int num_failures = 0;

inline int result(const char* name) {
  std::printf("%s: %s\n", name, num_failures ? "FAILED" : "ok");
  return num_failures ? 1 : 0;
}

}  // namespace kvpact::tests

// CHECK(condition, "what is wrong, with %d numbers", ...)
#define CHECK(condition, ...)                                   \
  do {                                                          \
    if (!(condition)) {                                         \
      std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      std::printf(__VA_ARGS__);                                 \
      std::printf("\n");                                        \
      kvpact::tests::num_failures++;                            \
    }                                                           \
  } while (0)
