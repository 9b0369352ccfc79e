// Memory for what is read from end to end each step: packed weights, entries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvpact {

// Zeroed bytes on large pages where the system has them (a scan over small pages misses the translation buffer once per
// 4 KB). Pages are given by the system at first touch.
class PageMemory {
 public:
  explicit PageMemory(size_t num_bytes);  // raises std::bad_alloc
  ~PageMemory();
  PageMemory(PageMemory&& other) noexcept;
  PageMemory& operator=(PageMemory&& other) noexcept;

  void* data() const { return data_; }  // aligned to 64 bytes at least, and to a large page if it holds one
  size_t num_bytes() const { return num_bytes_; }

 private:
  void* data_ = nullptr;
  void* mapping_ = nullptr;
  size_t num_mapped_ = 0;
  size_t num_bytes_ = 0;
};

// fp32 numbers that are written anew in every step, on lines of their own. Whoever shares one may still read it when it has grown.
class Buffer {
 public:
  // Room for `count` numbers, zeroed where it had to grow: what was in it is lost then. Returns whether it had to.
  bool reserve(int64_t count);
  float* data() const { return data_.get(); }
  const std::shared_ptr<float>& share() const { return data_; }

 private:
  std::shared_ptr<float> data_;
  int64_t size_ = 0;
};

}  // namespace kvpact
