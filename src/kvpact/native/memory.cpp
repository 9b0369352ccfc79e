#include "memory.hpp"

#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#else
#include <cstring>
#endif

namespace kvpact {
namespace {

constexpr size_t kLargePage = size_t{2} << 20;

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

}  // namespace kvpact
