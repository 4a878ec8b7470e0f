#pragma once
// RankGroup: the ranks of one `sluice train`, and what they do together outside of steps: they
// exchange texts, agree on numbers, and end together when one of them fails. Ranks are processes.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sluice/base/rank_failure.hpp"
#include "sluice/offload/device.hpp"
#include "sluice/train/rank_place.hpp"
#include "sluice/zero/nccl.hpp"
#include "sluice/zero/ranks.hpp"
#include "step/rank_links.hpp"

namespace sluice::train {

// All ranks make the same calls in the same order; each call may block until the others come. With
// one rank no call blocks. Confined to the thread that trains.
class RankGroup {
 public:
  // A group of one.
  RankGroup() : RankGroup(zero::make_single_ranks(), {}) {}
  RankGroup(zero::Ranks ranks, const RankPlace& place);

  int rank() const { return place_.rank; }
  int size() const { return place_.size; }
  bool is_first() const { return rank() == 0; }
  const RankPlace& place() const { return place_; }

  // For calls between steps, of the thread that trains.
  zero::Communicator& control() const { return *ranks_.control; }

  // The texts of all ranks, by rank.
  std::vector<std::string> exchange(const std::string& mine, const std::string& label);
  // The largest of the ranks' numbers.
  int largest(int mine, const std::string& label);
  // Runs `work` on every rank. If it throws on one, all ranks throw: the first rank that failed its
  // own error, the others too if theirs is another one, else RankFailure. DoesNotFit of several
  // ranks counts as one error. `work` makes no call that waits for other ranks.
  void together(const std::string& label, const std::function<void()>& work);
  // Throws InvalidArgument on rank 0 and RankFailure on the others. All ranks call it, with one
  // text.
  [[noreturn]] void refuse(const std::string& mistake);
  // As refuse(), for a reason that is nobody's mistake: throws Error on rank 0.
  [[noreturn]] void stop_all(const std::string& why);

  // A store of all ranks. Blocks until all have connected. Throws Error where one cannot.
  std::unique_ptr<zero::RankStore> meet();
  // The communicators of a run's resources. Call it once. With `by_nccl` the memory of `device`
  // goes between the ranks by NCCL: blocks until all have joined; throws Error where NCCL fails.
  // The links end before `device` and before this group.
  RankLinks take_links(offload::Device& device, bool by_nccl);
  // Tells the other ranks why this one ends: their calls fail. Does nothing after one of the
  // functions above has thrown, since then all ranks end. Does not block.
  void abort(const zero::AbortReason& why) const;

 private:
  zero::Ranks ranks_;
  std::unique_ptr<zero::RankStore> store_;  // of NCCL; null: none
  const RankPlace place_;
  bool all_end_ = false;
};

// Joins the ranks that the launcher started. Blocks until all have joined. Throws InvalidArgument
// when the launcher starts no ranks that this program can join, and Error when they cannot join.
// The process ends where not all come in time, and where `stop` becomes the number of a signal
// meanwhile (zero::join_mpi).
RankGroup join_ranks(const RankPlace& place, const std::atomic<int>& stop);

}  // namespace sluice::train
