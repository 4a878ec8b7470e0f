#pragma once
// RankNotes: what ranks of NCCL tell each other through a RankStore, since NCCL has no such
// messages: that a rank has joined, left or aborted, and where it waits. Not installed.
//
// Confined to the communicator's thread.

#include <cstdint>
#include <optional>
#include <string>

#include "sluice/zero/abort_reason.hpp"
#include "sluice/zero/nccl.hpp"

namespace sluice::zero {

class RankNotes {
 public:
  RankNotes(RankStore& store, std::string name, int rank, int world_size);

  // The id of rank 0's NCCL, given by rank 0 and taken by the others. Throws Error when rank 0 does
  // not give it in time.
  void give_id(const std::string& id);
  std::string take_id(std::chrono::duration<double> limit);

  void has_joined();
  void has_aborted(const AbortReason& why);
  // After `calls` calls.
  void has_left(std::uint64_t calls);

  // The reason of another rank that has aborted; its text names the rank. Does not block.
  std::optional<AbortReason> find_abort();
  // Why this rank's call number `call`, counted from 1, cannot end; empty: it can. Does not block.
  std::string find_end(std::uint64_t call);
  // Tells the others that this rank waits in `call`, and asks them; names those that do not answer
  // or wait elsewhere. Blocks for some seconds.
  std::string ask_all(const std::string& call);
  // The ranks that have not joined.
  std::string find_missing();

 private:
  std::string key(const std::string& what) const;
  std::string key(const std::string& what, int rank) const;

  RankStore& store_;
  const std::string name_;
  const int rank_;
  const int world_size_;
};

}  // namespace sluice::zero
