// Arrays from Python, checked before a kernel may see them: dtype, shape, contiguity. What is wrong is said with numbers.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <initializer_list>
#include <string>

#include "kernels/dtype.hpp"

namespace kvpact {

namespace nb = nanobind;
using Array = nb::ndarray<nb::device::cpu>;

constexpr int64_t kAny = -1;  // a dimension of any size

inline std::string shape_text(const Array& array) {
  std::string text = "[";
  for (size_t i = 0; i < array.ndim(); i++) text += (i ? ", " : "") + std::to_string(array.shape(i));
  return text + "]";
}

inline void check_shape(const Array& array, const char* name, std::initializer_list<int64_t> expected) {
  bool fits = array.ndim() == expected.size();
  std::string wanted = "[";
  size_t i = 0;
  for (int64_t size : expected) {
    fits = fits && (size == kAny || static_cast<int64_t>(array.shape(i)) == size);
    wanted += (i++ ? ", " : "") + (size == kAny ? std::string("any") : std::to_string(size));
  }
  if (!fits) throw nb::value_error((std::string(name) + " has shape " + shape_text(array) + ", expected " + wanted + "]").c_str());
  int64_t stride = 1;
  for (size_t d = array.ndim(); d-- > 0; stride *= static_cast<int64_t>(array.shape(d)))
    if (array.shape(d) > 1 && array.stride(d) != stride)
      throw nb::value_error((std::string(name) + " is not contiguous: stride " + std::to_string(array.stride(d)) + " in dimension " +
                             std::to_string(d) + ", expected " + std::to_string(stride)).c_str());
}

inline std::string dtype_text(const Array& array) {
  const auto dtype = array.dtype();
  const char* kinds[] = {"int", "uint", "float", "handle", "bfloat"};
  return (dtype.code < 5 ? kinds[dtype.code] : "other") + std::to_string(dtype.bits);
}

template <class T>
const T* checked(const Array& array, const char* name, std::initializer_list<int64_t> shape) {
  if (array.dtype() != nb::dtype<T>())
    throw nb::value_error((std::string(name) + " is of dtype " + dtype_text(array) + ", expected " +
                           (std::is_same_v<T, float> ? "float32" : "int64")).c_str());
  check_shape(array, name, shape);
  return static_cast<const T*>(array.data());
}

inline DType dtype_of(const Array& array, const char* name) {
  const auto dtype = array.dtype();
  if (dtype == nb::dtype<float>()) return DType::f32;
  if (dtype.bits == 16 && dtype.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat)) return DType::bf16;
  if (dtype.bits == 16 && dtype.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float)) return DType::f16;
  throw nb::value_error((std::string(name) + " is of dtype " + dtype_text(array) + ", expected float32, bfloat16 or float16").c_str());
}

// Every number in [low, high); otherwise says which one is not, and where.
inline void check_range(const int64_t* values, int64_t count, int64_t low, int64_t high, const char* name) {
  for (int64_t i = 0; i < count; i++)
    if (values[i] < low || values[i] >= high)
      throw nb::value_error((std::string(name) + "[" + std::to_string(i) + "] is " + std::to_string(values[i]) + ", outside [" +
                             std::to_string(low) + ", " + std::to_string(high) + "): nothing was written").c_str());
}

}  // namespace kvpact
