#pragma once
// The communicator of ranks with a GPU each, over NCCL. Its calls take memory of the device. The
// first call loads libnccl.so.2 by name, so a machine without NCCL runs everything else.
//
// NCCL compares nothing: ranks that make different calls wait until `call_limit`. It sums in an
// order of its own, in the type of the elements (docs/numerics.md). So results depend on the number
// of ranks and on NCCL's choice of algorithm, and equal runs have equal bits only as far as NCCL
// promises it.

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "sluice/offload/device.hpp"
#include "sluice/zero/communicator.hpp"

namespace sluice::zero {

// Texts that all ranks can set and get, as torch's TCPStore. NCCL's ranks find each other with it,
// and tell each other why they abort and where they wait. Thread-safe.
class RankStore {
 public:
  virtual ~RankStore() = default;
  // Throws Error when the store cannot be reached, as get() does.
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Blocks until `key` is set, but no longer than `limit`; nullopt then. 0: does not wait.
  virtual std::optional<std::string> get(const std::string& key,
                                         std::chrono::duration<double> limit) = 0;
};

struct NcclOptions {
  int rank = 0;
  int world_size = 1;
  offload::Device* device = nullptr;  // a GPU of its own for each rank; outlives the communicator
  RankStore* store = nullptr;         // outlives the communicator
  std::string name;  // equal on all ranks; no other communicator of the store has it
  // A call, or the start, that takes longer fails. NCCL cannot tell a rank that computes from one
  // that does not answer, so this is longer than a step.
  std::chrono::duration<double> call_limit{600};
};

// Why this process cannot use NCCL; empty: it can. Loads the library.
std::string find_why_no_nccl();

// Blocks until all ranks have joined. Throws Error with the reason where NCCL cannot be loaded,
// where it fails, and where a rank does not join in time, with its number.
std::unique_ptr<Communicator> make_nccl_communicator(const NcclOptions& options);

}  // namespace sluice::zero
