// The pool runs every unit once, whatever its size, its history and its process.
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "../threads.hpp"
#include "../waiting.hpp"
#include "check.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/wait.h>
#include <unistd.h>
#endif

using kvpact::ThreadPool;

namespace {

// Whether each of num_units ran exactly once, in chunks of at most grain, under a thread number below num_threads.
bool runs_once(ThreadPool& pool, int64_t num_units, int64_t grain) {
  std::vector<std::atomic<int>> times(static_cast<size_t>(num_units));
  std::vector<std::atomic<int>> inside(16);  // more than any pool here; another thread may be resizing this one
  std::atomic<bool> good{true};
  pool.parallel(num_units, grain, [&](int64_t begin, int64_t end, int thread) {
    if (thread < 0 || thread >= pool.num_threads() || begin >= end || end - begin > grain) {
      good = false;
      return;
    }
    if (inside[static_cast<size_t>(thread)].fetch_add(1) != 0) good = false;  // two at once under one number
    for (int64_t u = begin; u < end; u++) times[static_cast<size_t>(u)].fetch_add(1);
    inside[static_cast<size_t>(thread)].fetch_sub(1);
  });
  for (const auto& t : times) good = good && t == 1;
  return good;
}

// Whether two threads of the pool are inside one job at the same time, within ten seconds. `then` runs on both.
template <class F>
bool two_meet(ThreadPool& pool, F&& then) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::atomic<int> arrived{0}, met{0};
  pool.parallel(2, 1, [&](int64_t, int64_t, int) {
    arrived++;
    while (arrived < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    if (arrived == 2) met++;
    then();
  });
  return met == 2;
}

template <class Error, class F>
bool raises(F&& f) {
  try {
    f();
  } catch (const Error&) {
    return true;
  }
  return false;
}

void check_counts() {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (int64_t units : {0, 1, 2, 7, 1000}) {
      for (int64_t grain : {1, 3, 1000, 5000}) {
        CHECK(runs_once(pool, units, grain), "%d threads, %d units, grain %d", threads, static_cast<int>(units), static_cast<int>(grain));
      }
    }
  }
}

// A plain array written by all threads is seen whole by the caller, job after job.
void check_many_tiny_jobs() {
  ThreadPool pool(3);
  std::vector<int64_t> values(16, 0);
  for (int job = 0; job < 10000; job++) {
    pool.parallel(16, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t u = begin; u < end; u++) values[static_cast<size_t>(u)] += u;
    });
  }
  for (int64_t u = 0; u < 16; u++) CHECK(values[static_cast<size_t>(u)] == 10000 * u, "unit %d lost work", static_cast<int>(u));
}

// Pauses longer than the spin send the workers to sleep; the next job finds them.
void check_sleep() {
  ThreadPool pool(2);
  for (int i = 0; i < 20; i++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(two_meet(pool, [] {}), "a sleeping worker was not woken");
  }
}

void check_misuse() {
  for (int threads : {1, 2}) {
    ThreadPool pool(threads);
    std::atomic<int> refused{0};
    pool.parallel(4, 1, [&](int64_t, int64_t, int) {
      refused += raises<std::logic_error>([&] { pool.parallel(1, 1, [](int64_t, int64_t, int) {}); });
      refused += raises<std::logic_error>([&] { pool.resize(2); });
    });
    CHECK(refused == 8, "%d of 8 calls from inside a job were refused, on %d threads", refused.load(), threads);
    CHECK(raises<std::invalid_argument>([&] { pool.resize(0); }), "a pool of no threads");
    CHECK(raises<std::invalid_argument>([&] { pool.resize(ThreadPool::kMaxThreads + 1); }), "a pool of too many threads");
    CHECK(raises<std::invalid_argument>([&] { pool.parallel(1, 0, [](int64_t, int64_t, int) {}); }), "chunks of nothing");
    CHECK(runs_once(pool, 100, 1), "after refusals, on %d threads", threads);
  }
}

void check_resize() {
  ThreadPool pool;
  for (int threads : {4, 1, 2, 2, 7, 1, 3}) {
    pool.resize(threads);
    CHECK(pool.num_threads() == threads, "%d threads after resize to %d", pool.num_threads(), threads);
    CHECK(runs_once(pool, 100, 3), "resized to %d", threads);
  }
}

void check_callers_take_turns() {
  ThreadPool pool(3);
  std::atomic<bool> good{true};
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; c++) {
    callers.emplace_back([&] {
      for (int i = 0; i < 200; i++) {
        if (!runs_once(pool, 20, 2)) good = false;
      }
    });
  }
  for (int i = 0; i < 50; i++) pool.resize(1 + i % 4);
  for (std::thread& caller : callers) caller.join();
  CHECK(good, "three callers at once, and resizing");
}

void check_float_control() {
  ThreadPool pool(2);
  const uint64_t before = kvpact::float_control();
#if defined(__x86_64__)
  constexpr uint64_t kFlush = 0x8040;  // flush to zero, subnormals are zero
#elif defined(__aarch64__)
  constexpr uint64_t kFlush = 1u << 24;
#else
  constexpr uint64_t kFlush = 0;
#endif
  for (uint64_t control : {before | kFlush, before}) {
    kvpact::set_float_control(control);
    std::atomic<int> equal{0};
    const bool met = two_meet(pool, [&] { equal += kvpact::float_control() == control; });
    kvpact::set_float_control(before);
    CHECK(met && equal == 2, "a worker's floating-point control differs from its caller's");
  }
}

void check_fork() {
#if (defined(__unix__) || defined(__APPLE__)) && !defined(__SANITIZE_THREAD__)
  ThreadPool pool(2);
  CHECK(runs_once(pool, 100, 1), "before fork");
  const pid_t child = fork();
  if (child == 0) {
    const bool good = runs_once(pool, 100, 1) && two_meet(pool, [] {});
    pool.resize(3);
    _exit(good && runs_once(pool, 100, 1) ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's pool, status %d", status);
  CHECK(runs_once(pool, 100, 1) && two_meet(pool, [] {}), "the parent's pool after fork");
#endif
}

}  // namespace

int main() {
  check_counts();
  check_many_tiny_jobs();
  check_sleep();
  check_misuse();
  check_resize();
  check_callers_take_turns();
  check_float_control();
  check_fork();
  return kvpact::tests::result("threads");
}
