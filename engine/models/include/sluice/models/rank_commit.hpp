#pragma once
// Ranks around their saved states: they agree that work succeeded everywhere, exchange texts, and
// commit a step in two phases. Every rank of the communicator calls the same function. No LibTorch.
//
// Thread-safe for different communicators: free functions without state.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sluice/offload/swap_store.hpp"
#include "sluice/zero/communicator.hpp"

namespace sluice::models {

// `label`: of the texts' purpose. Ranks that call for different purposes get an error that names
// both, and not each other's texts.
//
// The texts of all ranks, in rank order, on every rank. Blocks.
std::vector<std::string> gather_texts(zero::Communicator& ranks, const std::string& own,
                                      const std::string& label);
// The text of rank 0, on every rank. Blocks.
std::string broadcast_text(zero::Communicator& ranks, const std::string& text,
                           const std::string& label);

// Several texts as one, and back. unpack_texts throws InvalidArgument for a text that is not
// packed.
std::string pack_texts(const std::vector<std::string>& texts);
std::vector<std::string> unpack_texts(const std::string& packed);

// Calls `work` on this rank, and returns when it has succeeded on all. When it threw here, throws
// that; when it threw on other ranks only, a RankFailure about `directory` that names the first of
// them and says why. `work` calls nothing collective. Blocks.
void do_on_all(zero::Communicator& ranks, const std::string& directory,
               const std::function<void()>& work);
// Calls `work` on rank 0 only; returns its text on every rank, or throws on every rank as
// do_on_all(). Blocks.
std::string do_on_first(zero::Communicator& ranks, const std::string& directory,
                        const std::function<std::string()>& work);

// Commits `step` of all ranks' stores at one moment: SwapStore::commit() for one rank, else two
// phases with `directory`/ranks.json. `store` is this rank's, in
// offload::rank_folder(directory, ...). With Durability::none, remembers the step, as
// SwapStore::commit() does, and removes ranks.json. Blocks. Throws when a rank could not write its
// part, with all ranks at the step before. When rank 0 fails to replace ranks.json or a rank is
// gone, it is not known which of the two steps is committed: then the stores refuse writes, and
// both steps stay whole.
void commit_parts(offload::SwapStore& store, zero::Communicator& ranks,
                  const std::string& directory, std::int64_t step, const std::string& metadata);
// Removes the record of an orderly end of as many ranks, whose parts are about to be written over.
// Those of another number of ranks stay. All ranks call it. Throws IoError, StorageError.
void release_parts(zero::Communicator& ranks, const std::string& directory);
// SwapStore::close_cleanly(): with Durability::none, commits the last step of commit_parts()
// durably for the next run, on all ranks or none. Blocks. Throws as commit_parts(); with another
// durability as close_cleanly() does, on the rank whose part it is.
void close_parts(offload::SwapStore& store, zero::Communicator& ranks,
                 const std::string& directory);

}  // namespace sluice::models
