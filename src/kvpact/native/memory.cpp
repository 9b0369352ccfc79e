#include "memory.hpp"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#endif

namespace kvpact {
namespace {

constexpr size_t kLargePage = size_t{2} << 20;
constexpr std::align_val_t kCacheLine{64};

}  // namespace

PageMemory::PageMemory(size_t num_bytes) : num_bytes_(num_bytes) {
  const size_t alignment = num_bytes >= kLargePage ? kLargePage : 64;
  if (num_bytes > SIZE_MAX - alignment) throw std::bad_alloc();
  num_mapped_ = num_bytes + alignment;
#if defined(__unix__) || defined(__APPLE__)
  mapping_ = mmap(nullptr, num_mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
#else
  mapping_ = std::calloc(num_mapped_, 1);
  if (!mapping_) throw std::bad_alloc();
#endif
  data_ = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(mapping_) + alignment - 1) / alignment * alignment);
#if defined(__linux__)
  if (alignment == kLargePage) madvise(data_, num_bytes, MADV_HUGEPAGE);  // a wish; refusal costs speed only
#endif
}

PageMemory::~PageMemory() {
  if (!mapping_) return;
#if defined(__unix__) || defined(__APPLE__)
  munmap(mapping_, num_mapped_);
#else
  std::free(mapping_);
#endif
}

PageMemory::PageMemory(PageMemory&& other) noexcept { *this = std::move(other); }

PageMemory& PageMemory::operator=(PageMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(mapping_, other.mapping_);
  std::swap(num_mapped_, other.num_mapped_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

bool Buffer::reserve(int64_t count) {
  if (count <= size_) return false;
  const size_t num_bytes = static_cast<size_t>(count) * sizeof(float);
  data_.reset(static_cast<float*>(::operator new(num_bytes, kCacheLine)), [](float* data) { ::operator delete(data, kCacheLine); });
  std::memset(data_.get(), 0, num_bytes);
  size_ = count;
  return true;
}

}  // namespace kvpact
