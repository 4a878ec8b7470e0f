#pragma once
// A drive for checkpoints that a test makes slow, late, or failing.

#include <atomic>
#include <chrono>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "offload/transfer/wrapped_backend.hpp"
#include "saved/checkpoint_writer.hpp"
#include "sluice/nvme/io_backend.hpp"
#include "sluice/nvme/io_engine.hpp"

namespace sluice::train::test {

// The drive of the checkpoints.
struct Drive {
  bool slow = false;
  offload::test::Fault fault;
  std::atomic<bool> answers{true};
  int answered_writes = std::numeric_limits<int>::max();  // further ones wait for `answers`
  std::atomic<int> held{0};                               // writes that wait
};

// Takes no request before the drive answers.
class HeldBackend final : public offload::test::WrappedBackend {
 public:
  HeldBackend(std::unique_ptr<nvme::IoBackend> inner, const Drive& drive)
      : WrappedBackend(std::move(inner)), drive_(drive) {}
  std::size_t submit(std::span<const nvme::IoRequest> requests) override {
    drive_.answers.wait(false);
    return inner().submit(requests);
  }

 private:
  const Drive& drive_;
};

// Answers the first writes, and the others when the drive answers.
class LateAnswers final : public offload::test::WrappedBackend {
 public:
  LateAnswers(std::unique_ptr<nvme::IoBackend> inner, Drive& drive)
      : WrappedBackend(std::move(inner)), drive_(drive) {}
  std::size_t submit(std::span<const nvme::IoRequest> requests) override {
    const std::size_t taken = inner().submit(requests);
    for (const nvme::IoRequest& request : requests.first(taken)) {
      if (request.op == nvme::IoOp::write && writes_++ >= drive_.answered_writes)
        late_.insert(request.tag);
    }
    return taken;
  }
  std::size_t reap(std::span<nvme::IoCompletion> completions) override {
    std::size_t count = 0;
    for (; drive_.answers && count < completions.size() && !held_.empty(); held_.pop_back())
      completions[count++] = held_.back();
    const std::span<nvme::IoCompletion> rest = completions.subspan(count);
    for (const nvme::IoCompletion& completion : rest.first(inner().reap(rest))) {
      if (late_.erase(completion.tag) > 0 && !drive_.answers) {
        held_.push_back(completion);
        ++drive_.held;
      } else {
        completions[count++] = completion;
      }
    }
    return count;
  }
  void wait() override {
    if (held_.empty()) return inner().wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  Drive& drive_;
  int writes_ = 0;
  std::set<std::uint64_t> late_;
  std::vector<nvme::IoCompletion> held_;
};

inline CheckpointWriter::MakeIo io_over(Drive& drive) {
  return [&drive] {
    std::unique_ptr<nvme::IoBackend> backend =
        nvme::make_backend(nvme::BackendKind::threads, 8, 2).backend;
    if (drive.answered_writes == std::numeric_limits<int>::max()) {
      backend = std::make_unique<HeldBackend>(std::move(backend), drive);
    } else {
      backend = std::make_unique<LateAnswers>(std::move(backend), drive);
    }
    if (drive.slow) backend = std::make_unique<offload::test::SlowBackend>(std::move(backend));
    backend = std::make_unique<offload::test::FaultyBackend>(std::move(backend), drive.fault);
    return std::make_unique<nvme::IoEngine>(std::move(backend), nvme::IoEngineOptions{});
  };
}

}  // namespace sluice::train::test
