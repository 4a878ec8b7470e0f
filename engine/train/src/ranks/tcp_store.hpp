#pragma once
// The store through which the ranks of NCCL find each other and leave notes: torch's TCPStore.
// Thread-safe: free functions without state.

#include <memory>
#include <string>

#include "sluice/zero/nccl.hpp"

namespace sluice::train {

struct ListeningStore {
  std::unique_ptr<zero::RankStore> store;
  std::string address;  // for connect_tcp_store() on the other ranks
};

// Rank 0: listens at a free port of this host. The other ranks' stores fail once it has ended.
// Throws Error.
ListeningStore listen_tcp_store();
// The other ranks. Blocks until rank 0 answers, for a minute at most. Throws Error, with the
// address.
std::unique_ptr<zero::RankStore> connect_tcp_store(const std::string& address);

}  // namespace sluice::train
