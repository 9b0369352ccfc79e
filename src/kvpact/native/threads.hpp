// A pool of threads that sleeps when it has nothing to do, and that a busy neighbour can't stall.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

namespace kvpact {

// A borrowed function over units [begin, end), called by thread number `thread`; it must outlive the call that takes it.
class UnitsRef {
 public:
  template <class F, class = std::enable_if_t<!std::is_same_v<std::decay_t<F>, UnitsRef>>>
  UnitsRef(F&& fn)  // NOLINT(google-explicit-constructor)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(fn)))),
        call_([](void* object, int64_t begin, int64_t end, int thread) {
          (*static_cast<std::remove_reference_t<F>*>(object))(begin, end, thread);
        }) {}
  void operator()(int64_t begin, int64_t end, int thread) const { call_(object_, begin, end, thread); }

 private:
  void* object_;
  void (*call_)(void*, int64_t, int64_t, int);
};

// The threads share out units, never a sum, so their number and order can't reach a result. The caller works too and
// waits only for workers that have joined its job: one that the system doesn't run in time simply misses it.
class ThreadPool {
 public:
  explicit ThreadPool(int num_threads = 1);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // From the next job on, this many threads work, the caller included. Raises std::invalid_argument outside
  // [1, kMaxThreads], std::logic_error inside a job.
  void resize(int num_threads);

  // Runs fn over [0, num_units) in chunks of `grain` units, each exactly once, and returns when all are done. `thread`
  // is in [0, num_threads), the caller is 0, and no two calls of one number run at the same time. Workers take over the
  // caller's floating-point control state. An exception that leaves fn ends the program. Callers in several threads take
  // turns; a call from inside a job raises std::logic_error. After fork, the child's first call starts its own workers.
  void parallel(int64_t num_units, int64_t grain, UnitsRef fn);

  static constexpr int kMaxThreads = 1024;

 private:
  class Crew;
  std::unique_lock<std::mutex> take_turn();
  void hire(int num_threads);
  void forget_parent();

  std::atomic<int> num_threads_{1};
  int64_t process_;  // whose threads the crew's are
  std::unique_ptr<std::mutex> turn_;
  std::unique_ptr<Crew> crew_;
};

}  // namespace kvpact
