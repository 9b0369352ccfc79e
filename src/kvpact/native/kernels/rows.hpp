// Everything else between embedding and logits that works on one row at a time. A row's sums depend on the row alone.
// Rows are fp32; `stride` is the distance between rows in numbers; widths need not be multiples of 8. Outputs may be the inputs.
#pragma once

#include <cstdint>

#include "dtype.hpp"
#include "row_types.hpp"

namespace kvpact::KVPACT_ISA_NS {

// out [rows, width] = table [vocab, width] at ids [rows], widened exactly. Ids are in range: the caller has checked them.
void embed(const void* table, DType dtype, const int64_t* ids, int64_t rows, int64_t width, float* out);

// x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019). A head's norm is this over rows of head_dim.
void rms_norm(const float* x, int64_t stride, const float* weight, float eps, int64_t rows, int64_t width, float* out, int64_t out_stride);

// (x - mean) / sqrt(var + eps) * weight + bias (Ba et al. 2016); the variance is of the differences. bias may be null.
void layer_norm(const float* x, int64_t stride, const float* weight, const float* bias, float eps, int64_t rows, int64_t width, float* out,
                int64_t out_stride);

// cos, sin [num_positions, dim / 2] of fp32(position) * inverse_frequency [dim / 2], times `attention_factor` (1 unless YaRN).
void rotary_table(const float* inverse_frequency, int64_t half, int64_t first_position, int64_t num_positions, float attention_factor,
                  float* cos, float* sin);

// Rotates pairs (i, i + rotary_dim / 2) of x [rows, heads, head_dim] in place (Su et al. 2021, as Hugging Face lays it out); what is
// behind rotary_dim stays. Row r takes the tables' row positions[r].
void rotate(float* x, int64_t stride, int64_t heads, int64_t head_dim, int64_t rotary_dim, const float* cos, const float* sin,
            const int64_t* positions, int64_t rows);

// out = activation(gate) * up, [rows, width] each; up may be null (then no product).
void activate(Activation kind, const float* gate, const float* up, int64_t stride, int64_t rows, int64_t width, float* out,
              int64_t out_stride);

// out [count] = a + b.
void add_rows(const float* a, const float* b, int64_t count, float* out);

}  // namespace kvpact::KVPACT_ISA_NS
