#include <algorithm>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/zero/communicator.hpp"
#include "sluice/zero/ranks.hpp"

namespace sluice::zero {

namespace {

// A group of one: no other rank to copy from, to sum or to wait for.
class SingleRank final : public Communicator {
 public:
  using Communicator::begin;

  int rank() const override { return 0; }
  int world_size() const override { return 1; }

  Ticket begin(const HostCall& call) override {
    return Ticket::ended(error_of([&] { run(call); }));
  }

  void abort(const AbortReason& why) override {
    MutexLock lock(mutex_);
    aborted_ = why.text;
  }
  CommunicatorCounters counters() const override { return counters_.counters(); }
  void observe(CallObserver observer) override { counters_.observe(std::move(observer)); }

 private:
  void run(const HostCall& call) {
    {
      MutexLock lock(mutex_);
      if (!aborted_.empty()) throw Error("rank 0 has aborted: " + aborted_);
    }
    const std::string mistake = find_mistake(call, call.input.size(), call.output.size(), 0, 1);
    SLUICE_CHECK(mistake.empty(), mistake);
    std::copy(call.input.begin(), call.input.end(), call.output.begin());  // scatter and gather
    counters_.add({call.operation, std::max(call.input.size(), call.output.size()), 1, 0, 0, 0},
                  call.label);
  }

  Mutex mutex_;
  std::string aborted_ SLUICE_GUARDED_BY(mutex_);
  CallCounters counters_;
};

}  // namespace

std::unique_ptr<Communicator> make_single_rank() {
  return std::make_unique<SingleRank>();
}

Ranks make_single_ranks() {
  return {make_single_rank(), make_single_rank(), make_single_rank()};
}

}  // namespace sluice::zero
