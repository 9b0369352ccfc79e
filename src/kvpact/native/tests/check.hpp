// The few words that the tests of the native core are written in: plain programs that say what is wrong and return nonzero.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace kvpact::tests {

inline int result(const char* name) {
  std::printf("%s: ok\n", name);
  return 0;
}

}  // namespace kvpact::tests

// CHECK(condition, "what is wrong, with %d numbers", ...)
#define CHECK(condition, ...)                                              \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      std::fprintf(stderr, __VA_ARGS__);                                   \
      std::fprintf(stderr, "\n");                                          \
      std::exit(1);                                                        \
    }                                                                      \
  } while (0)
