// Waiting for a number to change: a short spin, then sleep. And the floating-point control state of a thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <condition_variable>
#include <mutex>
#endif
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace kvpact {

inline void pause() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Rounding and subnormal modes, without the flags that operations set.
inline uint64_t float_control() {
#if defined(__x86_64__) || defined(_M_X64)
  return _mm_getcsr() & ~0x3fu;
#elif defined(__aarch64__)
  uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return control;
#else
  return 0;
#endif
}
inline void set_float_control(uint64_t control) {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_setcsr(static_cast<unsigned>(control));
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" : : "r"(control));
#else
  (void)control;
#endif
}

// A number that threads can wait on. Sleepers are counted, so that a wake costs a system call only if one sleeps.
class WaitWord {
 public:
  uint32_t get() const { return value_.load(std::memory_order_seq_cst); }
  void advance() { value_.fetch_add(1, std::memory_order_seq_cst); }

  // Longer spins made two threads slower than one beside a busy neighbour; shorter ones pay a wake between layers.
  static constexpr std::chrono::microseconds kSpin{20};

  // Returns once the number differs from `seen`.
  void wait(uint32_t seen) {
    const auto until = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < 32; i++) {
        if (get() != seen) return;
        pause();
      }
    } while (std::chrono::steady_clock::now() < until);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (get() == seen) sleep(seen);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

  // Wakes up to `count` sleepers; call it after advance.
  void wake(int count) {
    if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
#if defined(__linux__)
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value_), FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
#else
    (void)count;
    { std::lock_guard<std::mutex> hold(mutex_); }
    changed_.notify_all();
#endif
  }

 private:
  void sleep(uint32_t seen) {
#if defined(__linux__)
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value_), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
#else
    std::unique_lock<std::mutex> hold(mutex_);
    if (get() == seen) changed_.wait(hold);
#endif
  }

  std::atomic<uint32_t> value_{0};
  std::atomic<int> sleepers_{0};
#if defined(__linux__)
  static_assert(sizeof(std::atomic<uint32_t>) == 4, "a futex is 32 bits");
#else
  std::mutex mutex_;
  std::condition_variable changed_;
#endif
};

}  // namespace kvpact
