#include "linear_parallel.hpp"

#include <algorithm>

namespace kvpact {
namespace {

constexpr int64_t kWorkOfUnit = 100000;    // products; 2 to 4 microseconds, of which sharing takes less than a tenth
constexpr int64_t kUnitsPerThread = 4;     // so that a thread that is held up leaves its share to the others
constexpr int64_t kLeastPanels = 4;        // narrower units read x too often
constexpr int64_t kMostPanels = 64;        // 2 MB of a 576-wide matrix
constexpr int64_t kLeastRows = 48;         // fewer rows read each weight too often
constexpr int64_t kRowsTogether = 6;       // the tallest tile of any build; cutting one would slow it

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Cut {
  int64_t rows, panels;  // parts in each direction
};

// By panels first, so that each weight is read by one thread; by rows where there are too few panels. Either cut leaves
// every sum whole.
Cut cut(const LinearCall& call, int64_t num_threads) {
  const int64_t panels = call.panel_end - call.panel_begin;
  if (num_threads == 1) return {1, 1};
  const int64_t work = call.rows * panels * kPanelWidth * call.weight.in_features;
  int64_t wanted = std::clamp<int64_t>(work / kWorkOfUnit, 1, kUnitsPerThread * num_threads);
  if (wanted == 1) return {1, 1};
  if (wanted > num_threads) wanted -= wanted % num_threads;
  const int64_t panel_parts = std::min(wanted, divide_up(panels, kLeastPanels));
  const int64_t row_parts = std::clamp<int64_t>(wanted / panel_parts, 1, std::max<int64_t>(1, call.rows / kLeastRows));
  return {row_parts, std::max(panel_parts, divide_up(panels, kMostPanels))};
}

}  // namespace

void linear(ThreadPool& pool, const Kernels& kernels, const LinearCall& call) {
  const int64_t panels = call.panel_end - call.panel_begin;
  if (panels <= 0 || call.rows <= 0) return;
  const Cut parts = cut(call, pool.num_threads());
  const int64_t tiles = divide_up(call.rows, kRowsTogether);
  pool.parallel(parts.rows * parts.panels, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t u = begin; u < end; u++) {
      const int64_t r = u % parts.rows, p = u / parts.rows;
      const int64_t row = tiles * r / parts.rows * kRowsTogether;
      LinearCall part = call;
      part.rows = std::min(call.rows, tiles * (r + 1) / parts.rows * kRowsTogether) - row;
      part.x += row * call.ldx;
      part.y += row * call.ldy;
      if (part.residual) part.residual += row * call.ldr;
      part.panel_begin = call.panel_begin + panels * p / parts.panels;
      part.panel_end = call.panel_begin + panels * (p + 1) / parts.panels;
      kernels.linear(part);
    }
  });
}

void linear_pack(ThreadPool& pool, const Kernels& kernels, const LinearPackCall& call) {
  pool.parallel(call.panel_end - call.panel_begin, 8, [&](int64_t begin, int64_t end, int) {
    LinearPackCall part = call;
    part.panel_begin = call.panel_begin + begin;
    part.panel_end = call.panel_begin + end;
    kernels.linear_pack(part);
  });
}

}  // namespace kvpact
