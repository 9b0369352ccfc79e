#include "linear_parallel.hpp"

#include <algorithm>

namespace kvpact {
namespace {

constexpr int64_t kWorkOfUnit = 100000;  // products; 1 to 4 microseconds, of which sharing takes less than a tenth
constexpr int64_t kUnitsPerThread = 16;  // small units even out: two threads that share 8 of them can end a sixth apart
constexpr int64_t kFewRows = 96;         // up to so many, a thread does best with a long run of panels, each group fetching the next
constexpr int64_t kUnitsOfFew = 2;
constexpr int64_t kLeastPanels = 2;      // as measured, wider units gain nothing
constexpr int64_t kMostPanels = 64;      // 2 MB of a 576-wide matrix
constexpr int64_t kLeastRows = 48;       // fewer rows read each weight too often
constexpr int64_t kRowsTogether = 12;    // the tallest tile of any build, a whole number of those of the others: cutting one would slow it
constexpr int64_t kPanelsTogether = 4;   // and the widest, which up to three rows have

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Cut {
  int64_t row_parts, unit_panels;
};

// By panels first, so that each weight is read by one thread; by rows where there are too few panels. Either cut leaves
// every sum whole.
Cut cut(const LinearCall& call, int64_t num_threads) {
  const int64_t panels = call.panel_end - call.panel_begin;
  const int64_t work = call.rows * panels * kPanelWidth * call.weight.in_features;
  const bool few = call.rows >= kPanelsTogether && call.rows <= kFewRows;
  int64_t wanted = std::min(work / kWorkOfUnit, (few ? kUnitsOfFew : kUnitsPerThread) * num_threads);
  if (num_threads == 1 || wanted < 2) return {1, panels};
  if (wanted > num_threads) wanted -= wanted % num_threads;
  int64_t width = std::clamp(divide_up(panels, wanted), kLeastPanels, kMostPanels);
  if (call.rows < kPanelsTogether && width > kPanelsTogether) width -= width % kPanelsTogether;
  const int64_t row_parts = wanted / divide_up(panels, width);
  return {std::clamp<int64_t>(row_parts, 1, std::max<int64_t>(1, call.rows / kLeastRows)), width};
}

}  // namespace

void linear(ThreadPool& pool, const Kernels& kernels, const LinearCall& call) {
  const int64_t panels = call.panel_end - call.panel_begin;
  if (panels <= 0 || call.rows <= 0) return;
  const Cut parts = cut(call, pool.num_threads());
  const int64_t tiles = divide_up(call.rows, kRowsTogether);
  pool.parallel(parts.row_parts * divide_up(panels, parts.unit_panels), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t u = begin; u < end; u++) {
      const int64_t r = u % parts.row_parts, p = u / parts.row_parts * parts.unit_panels;
      const int64_t row = tiles * r / parts.row_parts * kRowsTogether;
      LinearCall part = call;
      part.rows = std::min(call.rows, tiles * (r + 1) / parts.row_parts * kRowsTogether) - row;
      part.x += row * call.ldx;
      part.y += row * call.ldy;
      if (part.residual) part.residual += row * call.ldr;
      part.panel_begin = call.panel_begin + p;
      part.panel_end = call.panel_begin + std::min(panels, p + parts.unit_panels);
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
