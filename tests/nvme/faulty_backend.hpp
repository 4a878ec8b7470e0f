#pragma once
// FaultyBackend wraps a real backend, injects faults, and counts requests in flight.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/nvme/io_backend.hpp"

namespace sluice::nvme {

// The treatment of one request.
struct Fault {
  enum class Kind {
    none,
    answer,   // not passed on; completes with `answer`
    shorten,  // passed on shortened; completes with at most `shorten_to_bytes`
  };
  Kind kind = Kind::none;
  std::int64_t answer = 0;
  std::uint32_t shorten_to_bytes = 0;
  bool hold = false;  // holds its completion until release_held()

  static Fault with(std::int64_t result) { return {Kind::answer, result, 0, false}; }
  static Fault cut_to(std::uint32_t size_bytes) { return {Kind::shorten, 0, size_bytes, false}; }
  static Fault held() { return {Kind::none, 0, 0, true}; }
};

struct FaultyOptions {
  // Called once for each request, on the engine's thread, with the request's number from 0.
  std::function<Fault(const IoRequest&, std::uint64_t index)> rule;
  std::uint32_t alignment_bytes =
      1;                             // of the file: what a shortened request is still rounded up to
  std::size_t max_taken = SIZE_MAX;  // by one submit
  unsigned refusals = 0;             // number of first submits that take nothing
  std::uint64_t throw_at_submit = 0;  // the n-th submit from 1 throws; 0: none
  std::uint64_t shuffle_seed = 0;     // 0: completions come in order and immediately
};

// Confined to thread: the engine's, except wake() and the methods below it.
class FaultyBackend final : public IoBackend {
 public:
  FaultyBackend(std::unique_ptr<IoBackend> inner, FaultyOptions options)
      : inner_(std::move(inner)), options_(std::move(options)), random_(options_.shuffle_seed) {}

  std::string_view name() const override { return inner_->name(); }
  unsigned depth() const override { return inner_->depth(); }

  std::size_t submit(std::span<const IoRequest> requests) override {
    if (++submits_ == options_.throw_at_submit) throw IoError(EIO, "submit", "faulty backend");
    if (submits_ <= options_.refusals) return 0;
    std::size_t taken = 0;
    while (taken < std::min(requests.size(), options_.max_taken)) {
      if (in_flight_ == depth() || !take(requests[taken])) break;
      ++taken;
    }
    return taken;
  }

  std::size_t reap(std::span<IoCompletion> completions) override {
    collect();
    if (options_.shuffle_seed != 0) {
      std::shuffle(finished_.begin(), finished_.end(), random_);
      if (random_() % 4 == 0) return 0;  // later
    }
    const std::size_t count = std::min(finished_.size(), completions.size());
    std::copy_n(finished_.begin(), count, completions.begin());
    finished_.erase(finished_.begin(), finished_.begin() + static_cast<std::ptrdiff_t>(count));
    in_flight_ -= static_cast<unsigned>(count);
    return count;
  }

  void wait() override {
    collect();
    if (!finished_.empty()) return;
    {
      MutexLock lock(mutex_);
      ++waits_;
      waits_changed_.notify_all();
    }
    inner_->wait();
  }

  void wake() override { inner_->wake(); }
  bool add_memory(std::span<std::byte> region, std::string& why_not) override {
    return inner_->add_memory(region, why_not);
  }
  void remove_memory(std::span<std::byte> region) override { inner_->remove_memory(region); }
  bool add_file(int fd, std::string& why_not) override { return inner_->add_file(fd, why_not); }
  void remove_file(int fd) override { inner_->remove_file(fd); }

  // The methods below are thread-safe.

  void release_held() {
    {
      MutexLock lock(mutex_);
      releasing_ = true;
    }
    inner_->wake();
  }
  // Blocks until the engine waits and `held` completions are held.
  void wait_until_idle_with(std::size_t held) {
    MutexLock lock(mutex_);
    while (held_.size() != held || waits_ == waits_at_hold_) waits_changed_.wait(mutex_);
  }
  unsigned in_flight() const { return in_flight_; }
  unsigned max_in_flight() const { return max_in_flight_; }
  // The submitted requests, in order. Read them when nothing is in flight.
  const std::vector<IoRequest>& history() const { return history_; }

 private:
  struct Pending {
    std::uint64_t tag = 0;
    std::int64_t most = 0;
    bool hold = false;
  };

  bool take(const IoRequest& request) {
    const std::uint64_t index = history_.size();
    const Fault fault = options_.rule ? options_.rule(request, index) : Fault{};
    IoRequest passed = request;
    Pending pending{request.tag, request.size_bytes, fault.hold};
    if (fault.kind == Fault::Kind::shorten && fault.shorten_to_bytes < request.size_bytes) {
      pending.most = fault.shorten_to_bytes;
      passed.size_bytes =
          static_cast<std::uint32_t>(align_up(fault.shorten_to_bytes, options_.alignment_bytes));
    }
    if (fault.kind == Fault::Kind::answer) {
      finish(pending, fault.answer);
    } else {
      passed.tag = slots_.size();
      slots_.push_back(pending);
      if (inner_->submit({&passed, 1}) != 1) {
        slots_.pop_back();
        return false;
      }
    }
    history_.push_back(request);
    ++in_flight_;
    max_in_flight_ = std::max(max_in_flight_.load(), in_flight_.load());
    return true;
  }

  // Translates inner completions, and held ones after their release.
  void collect() {
    IoCompletion completion;
    while (inner_->reap({&completion, 1}) == 1) {
      const Pending& pending = slots_[completion.tag];
      finish(pending, std::min(completion.result, pending.most));
    }
    MutexLock lock(mutex_);
    if (!releasing_) return;
    finished_.insert(finished_.end(), held_.begin(), held_.end());
    held_.clear();
  }

  void finish(const Pending& pending, std::int64_t result) {
    const IoCompletion completion{pending.tag, result};
    MutexLock lock(mutex_);
    if (pending.hold && !releasing_) {
      held_.push_back(completion);
      waits_at_hold_ = waits_;
    } else {
      finished_.push_back(completion);
    }
  }

  std::unique_ptr<IoBackend> inner_;
  const FaultyOptions options_;
  std::mt19937_64 random_;
  std::uint64_t submits_ = 0;
  std::vector<Pending> slots_;  // indexed by the inner backend's tag
  std::vector<IoCompletion> finished_;
  std::vector<IoRequest> history_;
  std::atomic<unsigned> in_flight_{0};
  std::atomic<unsigned> max_in_flight_{0};

  Mutex mutex_;
  CondVar waits_changed_;
  std::vector<IoCompletion> held_ SLUICE_GUARDED_BY(mutex_);
  bool releasing_ SLUICE_GUARDED_BY(mutex_) = false;
  std::uint64_t waits_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::uint64_t waits_at_hold_ SLUICE_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice::nvme
