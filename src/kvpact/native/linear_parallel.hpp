// The linear layer on all threads.
#pragma once

#include "kernels/kernels.hpp"
#include "threads.hpp"

namespace kvpact {

// kernels.linear over [call.panel_begin, call.panel_end), shared out over the pool by rows and panels.
void linear(ThreadPool& pool, const Kernels& kernels, const LinearCall& call);

// kernels.linear_pack over [call.panel_begin, call.panel_end), shared out over the pool.
void linear_pack(ThreadPool& pool, const Kernels& kernels, const LinearPackCall& call);

}  // namespace kvpact
