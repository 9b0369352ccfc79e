#include "linear_parallel.hpp"

#include <algorithm>

namespace kvpact {
namespace {

constexpr int64_t kRowsOfUnit = 48;            // enough for a panel's weights to be used many times once they are in L2
constexpr double kWorkOfUnit = 2e5;            // products; some 5 microseconds at least, or sharing costs more than it gives

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

// A matrix that is read from memory is cut by panels, so that each weight is read by one thread; few panels and many
// rows are cut by rows as well. Either cut leaves every sum whole.
void linear(ThreadPool& pool, const Kernels& kernels, const LinearCall& call) {
  const int64_t panels = call.panel_end - call.panel_begin;
  if (panels <= 0 || call.rows <= 0) return;
  const int64_t threads = pool.num_threads();
  const int64_t row_parts = threads == 1 ? 1 : std::clamp<int64_t>(call.rows / kRowsOfUnit, 1, 4 * threads);
  const int64_t part_rows = divide_up(divide_up(call.rows, row_parts), 6) * 6;
  const double panel_work = static_cast<double>(kPanelWidth * call.weight.in_features * std::min(part_rows, call.rows));
  const int64_t least_panels = std::max<int64_t>(1, static_cast<int64_t>(kWorkOfUnit / panel_work));
  const int64_t unit_panels = threads == 1 ? panels : std::clamp<int64_t>(divide_up(panels, 4 * threads), least_panels, std::max<int64_t>(least_panels, 64));
  const int64_t row_units = divide_up(call.rows, part_rows), panel_units = divide_up(panels, unit_panels);
  auto unit = [&](int64_t begin, int64_t end, int) {
    for (int64_t u = begin; u < end; u++) {
      LinearCall part = call;
      const int64_t row = u % row_units * part_rows;
      part.rows = std::min(part_rows, call.rows - row);
      part.x += row * call.ldx;
      part.y += row * call.ldy;
      if (part.residual) part.residual += row * call.ldr;
      part.panel_begin = call.panel_begin + u / row_units * unit_panels;
      part.panel_end = std::min(call.panel_end, part.panel_begin + unit_panels);
      kernels.linear(part);
    }
  };
  pool.parallel(row_units * panel_units, 1, unit);
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
