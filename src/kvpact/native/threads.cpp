// A job is open from the moment it is published until its caller finds no unit left. Workers join open jobs only, and
// the caller of a closed one waits for those that have joined; so the job's record is never written while it is read.
#include "threads.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "waiting.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#endif

namespace kvpact {
namespace {

thread_local bool inside_job = false;

int64_t this_process() {
#if defined(__unix__) || defined(__APPLE__)
  return getpid();
#else
  return 0;
#endif
}

// Threads started while this lives take no signals: those belong to the program's own threads.
class SignalsBlocked {
#if defined(__unix__) || defined(__APPLE__)
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
#endif
};

void run_alone(int64_t num_units, int64_t grain, UnitsRef fn) noexcept {
  inside_job = true;
  for (int64_t begin = 0; begin < num_units; begin += grain) fn(begin, std::min(begin + grain, num_units), 0);
  inside_job = false;
}

}  // namespace

class ThreadPool::Crew {
 public:
  explicit Crew(int num_workers) {
    SignalsBlocked blocked;
    try {
      for (int i = 1; i <= num_workers; i++) workers_.emplace_back([this, i] { work(i); });
    } catch (...) {  // the system refused a thread: leave none behind
      stop();
      throw;
    }
  }
  ~Crew() { stop(); }

  void run(int64_t num_units, int64_t grain, UnitsRef fn) {
    job_ = {&fn, num_units, grain, float_control()};
    next_.store(0, std::memory_order_relaxed);
    joined_.store(kOpen, std::memory_order_release);
    published_.advance();
    const int64_t helpers = (num_units + grain - 1) / grain - 1;
    published_.wake(static_cast<int>(std::min<int64_t>(helpers, kMaxThreads)));
    claim_units(0);
    uint32_t seen = left_.get();
    if (joined_.fetch_and(~kOpen, std::memory_order_acq_rel) == kOpen) return;
    while (joined_.load(std::memory_order_acquire) != 0) {
      left_.wait(seen);
      seen = left_.get();
    }
  }

 private:
  struct Job {
    UnitsRef* fn;
    int64_t num_units, grain;
    uint64_t float_control;
  };
  static constexpr uint32_t kOpen = 1u << 31;  // the other bits count the workers that have joined

  void claim_units(int thread) noexcept {
    inside_job = true;
    for (;;) {
      const int64_t begin = next_.fetch_add(job_.grain, std::memory_order_relaxed);
      if (begin >= job_.num_units) break;
      (*job_.fn)(begin, std::min(begin + job_.grain, job_.num_units), thread);
    }
    inside_job = false;
  }

  bool join() {
    uint32_t joined = joined_.load(std::memory_order_relaxed);
    while (joined & kOpen) {
      if (joined_.compare_exchange_weak(joined, joined + 1, std::memory_order_acquire, std::memory_order_relaxed)) return true;
    }
    return false;
  }

  void work(int thread) {
    uint32_t seen = 0;
    for (;;) {
      published_.wait(seen);
      seen = published_.get();
      if (stopping_.load(std::memory_order_acquire)) return;
      if (!join()) continue;
      set_float_control(job_.float_control);
      claim_units(thread);
      if (joined_.fetch_sub(1, std::memory_order_acq_rel) == 1) {  // closed, and the last one: the caller may be waiting
        left_.advance();
        left_.wake(1);
      }
    }
  }

  void stop() {
    stopping_.store(true, std::memory_order_release);
    published_.advance();
    published_.wake(kMaxThreads);
    for (std::thread& worker : workers_) worker.join();
  }

  // What the caller writes to publish, what all claim from, and what workers count in lie on lines of their own.
  alignas(64) WaitWord published_;
  std::atomic<bool> stopping_{false};
  alignas(64) Job job_{};
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint32_t> joined_{0};
  alignas(64) WaitWord left_;
  std::vector<std::thread> workers_;
};

ThreadPool::ThreadPool(int num_threads) : process_(this_process()), turn_(std::make_unique<std::mutex>()) { resize(num_threads); }

ThreadPool::~ThreadPool() {
  if (process_ != this_process()) forget_parent();
}

// The child of a fork has none of its parent's threads, which can't be joined, and perhaps a lock that one of them held.
void ThreadPool::forget_parent() {
  crew_.release();
  turn_.release();
}

std::unique_lock<std::mutex> ThreadPool::take_turn() {
  if (inside_job) throw std::logic_error("a job of the thread pool can't start another one, nor resize the pool");
  if (process_ == this_process()) return std::unique_lock<std::mutex>(*turn_);
  forget_parent();
  process_ = this_process();
  turn_ = std::make_unique<std::mutex>();
  std::unique_lock<std::mutex> turn(*turn_);
  hire(num_threads_);
  return turn;
}

void ThreadPool::hire(int num_threads) {
  crew_.reset();
  num_threads_ = 1;
  if (num_threads > 1) crew_ = std::make_unique<Crew>(num_threads - 1);
  num_threads_ = num_threads;
}

void ThreadPool::resize(int num_threads) {
  if (num_threads < 1 || num_threads > kMaxThreads) {
    throw std::invalid_argument("num_threads is " + std::to_string(num_threads) + ", must be from 1 to " + std::to_string(kMaxThreads));
  }
  auto turn = take_turn();
  if (num_threads != num_threads_) hire(num_threads);
}

void ThreadPool::parallel(int64_t num_units, int64_t grain, UnitsRef fn) {
  if (grain < 1) throw std::invalid_argument("grain is " + std::to_string(grain) + ", must be at least 1");
  auto turn = take_turn();
  if (num_units <= 0) return;
  if (crew_ && num_units > grain) return crew_->run(num_units, grain, fn);
  run_alone(num_units, grain, fn);
}

}  // namespace kvpact
