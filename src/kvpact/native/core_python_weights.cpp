// A decoder as Python hands it over: its shape, packed weights and tables, checked before the core may see them.
#include "core_python.hpp"

#include <algorithm>

#include "dispatch.hpp"

namespace kvpact {
namespace {

std::vector<float> numbers(const MaybeArray& array, const char* name, int64_t count) {
  if (!array) return {};
  const float* data = checked<float>(*array, name, {count});
  return std::vector<float>(data, data + count);
}

// Moves the weights out. A matrix that was taken before would leave its second owner with a pointer into the first one's memory.
Matrix take(Matrix& matrix, const char* name, int64_t out_features, int64_t in_features) {
  if (!matrix.memory.data()) refuse(std::string(name) + " was moved into a core before: pack it again");
  const PackedLinear& packed = matrix.packed;
  if ((out_features != kAny && packed.out_features != out_features) || packed.in_features != in_features)
    refuse(std::string(name) + " has shape [" + std::to_string(packed.out_features) + ", " + std::to_string(packed.in_features) +
           "], expected [" + (out_features == kAny ? "any" : std::to_string(out_features)) + ", " + std::to_string(in_features) + "]");
  return std::move(matrix);
}

Shape checked_shape(Shape s, int activation, const MaybeArray& cos, const MaybeArray& sin) {
  for (int64_t size : {s.hidden, s.inner, s.num_heads, s.num_kv_heads, s.head_dim})
    if (size < 1) refuse("a size of the decoder is " + std::to_string(size) + ", must be at least 1");
  if (s.num_heads % s.num_kv_heads || s.num_heads / s.num_kv_heads > kMaxRows)
    refuse(std::to_string(s.num_heads) + " query heads can't share " + std::to_string(s.num_kv_heads) + " key heads, or more than " +
           std::to_string(kMaxRows) + " share one");
  if (s.head_dim % 8 || s.head_dim > kMaxHeadDim)
    refuse("head_dim is " + std::to_string(s.head_dim) + ", must be a multiple of 8, at most " + std::to_string(kMaxHeadDim));
  if (activation < 0 || activation > static_cast<int>(Activation::gelu_tanh)) refuse("no activation " + std::to_string(activation));
  s.activation = static_cast<Activation>(activation);
  if (cos.has_value() != sin.has_value()) refuse("cos and sin come together or not at all");
  if (!cos) return s;
  s.cos = checked<float>(*cos, "cos", {kAny, s.head_dim / 2});
  s.num_positions = static_cast<int64_t>(cos->shape(0));
  s.sin = checked<float>(*sin, "sin", {s.num_positions, s.head_dim / 2});
  return s;
}

}  // namespace

PythonCore::PythonCore(const Shape& shape, int activation, MaybeArray cos, MaybeArray sin, int num_threads)
    : core_(checked_shape(shape, activation, cos, sin), select_kernels(), num_threads),
      cos_(cos), sin_(sin), num_positions_(cos ? core_.shape().num_positions : INT64_MAX) {}

Matrix PythonCore::pack(Array weight, MaybeArray bias) {
  const Use use(*this);
  const DType dtype = dtype_of(weight, "weight");
  check_shape(weight, "weight", {kAny, kAny});
  const auto out_features = static_cast<int64_t>(weight.shape(0)), in_features = static_cast<int64_t>(weight.shape(1));
  if (!out_features || !in_features) refuse("weight has shape " + shape_text(weight) + ": it is empty");
  std::vector<float> added = numbers(bias, "bias", out_features);
  nb::gil_scoped_release unlocked;
  return core_.pack(weight.data(), out_features, in_features, dtype, std::move(added));
}

void PythonCore::set_tables(Array embedding, MaybeArray positions, Matrix& head, Array norm_weight, MaybeArray norm_bias) {
  const Use use(*this);
  stepping_ = false;
  const Table tokens = table(embedding, "embedding"), places = positions ? table(*positions, "positions") : Table{};
  Norm final_norm = norm(norm_weight, norm_bias);
  core_.set_tables(tokens, places, take(head, "head", kAny, core_.shape().hidden), std::move(final_norm));
  tables_ = {embedding};
  if (positions) tables_.push_back(*positions);
  vocab_ = tokens.rows;
  if (positions) num_positions_ = std::min(num_positions_, places.rows);
}

void PythonCore::add_layer(Array attention_weight, MaybeArray attention_bias, Matrix& qkv, MaybeArray q_norm, MaybeArray k_norm,
                           Matrix& out, Array mlp_weight, MaybeArray mlp_bias, Matrix& up, Matrix& down) {
  const Use use(*this);
  stepping_ = false;
  const Shape& s = core_.shape();
  if (q_norm.has_value() != k_norm.has_value()) refuse("q_norm and k_norm come together or not at all");
  LayerWeights layer;
  layer.attention_norm = norm(attention_weight, attention_bias);
  layer.mlp_norm = norm(mlp_weight, mlp_bias);
  layer.q_norm = numbers(q_norm, "q_norm", s.head_dim);
  layer.k_norm = numbers(k_norm, "k_norm", s.head_dim);
  layer.qkv = take(qkv, "qkv", (s.num_heads + 2 * s.num_kv_heads) * s.head_dim, s.hidden);
  layer.out = take(out, "out", s.hidden, s.num_heads * s.head_dim);
  layer.up = take(up, "up", s.inner * (s.gated ? 2 : 1), s.hidden);
  layer.down = take(down, "down", s.hidden, s.inner);
  core_.add_layer(std::move(layer));
}

Table PythonCore::table(const Array& array, const char* name) const {
  const DType dtype = dtype_of(array, name);
  check_shape(array, name, {kAny, core_.shape().hidden});
  return Table{array.data(), static_cast<int64_t>(array.shape(0)), dtype};
}

Norm PythonCore::norm(const Array& weight, const MaybeArray& bias) const {
  return Norm{numbers(weight, "norm weight", core_.shape().hidden), numbers(bias, "norm bias", core_.shape().hidden)};
}

}  // namespace kvpact
