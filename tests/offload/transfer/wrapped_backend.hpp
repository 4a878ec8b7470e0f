#pragma once
// I/O backends that wrap a real one: one that fails a request, one that holds requests back, one
// that is slow.

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/nvme/io_backend.hpp"

namespace sluice::offload::test {

// Passes everything on. Confined to the engine's thread, except wake().
class WrappedBackend : public nvme::IoBackend {
 public:
  explicit WrappedBackend(std::unique_ptr<nvme::IoBackend> inner) : inner_(std::move(inner)) {}
  std::string_view name() const override { return inner_->name(); }
  unsigned depth() const override { return inner_->depth(); }
  std::size_t submit(std::span<const nvme::IoRequest> requests) override {
    return inner_->submit(requests);
  }
  std::size_t reap(std::span<nvme::IoCompletion> completions) override {
    return inner_->reap(completions);
  }
  void wait() override { inner_->wait(); }
  void wake() override { inner_->wake(); }

 protected:
  nvme::IoBackend& inner() { return *inner_; }

 private:
  const std::unique_ptr<nvme::IoBackend> inner_;
};

// The settings that a test changes while the engine runs. Thread-safe.
struct Fault {
  std::atomic<nvme::IoOp> op{nvme::IoOp::read};
  std::atomic<int> requests_until{-1};  // 0: the next request of `op` fails, once; below 0: none
};

// Answers EIO to one request. The fault outlives it.
class FaultyBackend final : public WrappedBackend {
 public:
  FaultyBackend(std::unique_ptr<nvme::IoBackend> inner, Fault& fault)
      : WrappedBackend(std::move(inner)), fault_(fault) {}

  std::size_t submit(std::span<const nvme::IoRequest> requests) override {
    const std::size_t taken = inner().submit(requests);
    for (const nvme::IoRequest& request : requests.first(taken)) {
      if (request.op != fault_.op.load() || fault_.requests_until.load() < 0) continue;
      if (fault_.requests_until.fetch_sub(1) == 0) failing_.insert(request.tag);
    }
    return taken;
  }
  std::size_t reap(std::span<nvme::IoCompletion> completions) override {
    const std::size_t count = inner().reap(completions);
    for (nvme::IoCompletion& completion : completions.first(count)) {
      if (failing_.erase(completion.tag) > 0) completion.result = -EIO;
    }
    return count;
  }

 private:
  Fault& fault_;
  std::set<std::uint64_t> failing_;
};

// Each request begins some time after it was asked for.
class SlowBackend final : public WrappedBackend {
 public:
  using WrappedBackend::WrappedBackend;
  std::size_t submit(std::span<const nvme::IoRequest> requests) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return inner().submit(requests);
  }
};

// Holds requests back: all until open(), then the first alone, then the others until `least` are
// there.
class GatedBackend final : public WrappedBackend {
 public:
  GatedBackend(std::unique_ptr<nvme::IoBackend> inner, std::size_t least)
      : WrappedBackend(std::move(inner)), least_(least) {}

  // Thread-safe.
  void open() {
    open_ = true;
    wake();
  }
  std::size_t submit(std::span<const nvme::IoRequest> requests) override {
    held_.insert(held_.end(), requests.begin(), requests.end());
    pass_on();
    return requests.size();
  }
  std::size_t reap(std::span<nvme::IoCompletion> completions) override {
    pass_on();
    return inner().reap(completions);
  }
  // Requests that reap() passed on may have ended within it; then others may be passed on.
  void wait() override {
    pass_on();
    inner().wait();
  }

 private:
  void pass_on() {
    if (!open_.load() || held_.size() < least_now_) return;
    const std::span<const nvme::IoRequest> requests(held_);
    const std::size_t taken = inner().submit(first_passed_ ? requests : requests.first(1));
    held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(taken));
    if (taken == 0) return;
    least_now_ = first_passed_ ? 1 : least_;
    first_passed_ = true;
  }

  std::atomic<bool> open_{false};
  const std::size_t least_;
  std::size_t least_now_ = 1;
  bool first_passed_ = false;
  std::vector<nvme::IoRequest> held_;
};

}  // namespace sluice::offload::test
