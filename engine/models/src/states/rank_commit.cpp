#include "sluice/models/rank_commit.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <exception>
#include <span>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/base/rank_failure.hpp"
#include "sluice/offload/swap_state.hpp"

namespace sluice::models {

namespace {

// Before the text of another rank's failure.
std::string about(const std::string& directory) {
  return directory.empty() ? "" : directory + ": ";
}

// Makes the call that tells the others of `own`, a failure of this rank or null. That failure is
// thrown even where the call breaks: a rank that has the text already may have ended.
template <typename Call>
auto told(const std::exception_ptr& own, Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (...) {
    if (own) std::rethrow_exception(own);
    throw;
  }
}

// `failures`: of all ranks, encoded.
void throw_first(const std::exception_ptr& own, const std::vector<std::string>& failures,
                 const std::string& before) {
  if (own) std::rethrow_exception(own);
  for (std::size_t rank = 0; rank < failures.size(); ++rank)
    if (!failures[rank].empty())
      throw decode_failure(failures[rank], static_cast<int>(rank), before);
}

// Digests of what each rank has prepared. Throws on every rank when one has not prepared. Then this
// call leaves nothing prepared; an earlier commit that is prepared stays, since all ranks may have
// it.
std::vector<std::uint64_t> prepare_all(offload::SwapStore& store, zero::Communicator& ranks,
                                       const std::string& directory, std::int64_t step,
                                       const std::string& metadata) {
  std::uint64_t own_digest = 0;
  const std::exception_ptr own =
      error_of([&] { own_digest = store.prepare_commit(step, metadata); });
  std::vector<std::string> failures;
  std::vector<std::string> steps;
  std::vector<std::uint64_t> digests;
  const std::string mine =
      pack_texts({encode_failure(own), std::to_string(step), std::to_string(own_digest)});
  for (const std::string& each :
       told(own, [&] { return gather_texts(ranks, mine, "a commit in two phases"); })) {
    const std::vector<std::string> part = unpack_texts(each);
    failures.push_back(part.at(0));
    steps.push_back(part.at(1));
    digests.push_back(std::stoull(part.at(2)));
  }
  try {
    throw_first(own, failures,
                about(directory) + "step " + std::to_string(step) + " is not committed: ");
    for (std::size_t rank = 0; rank < steps.size(); ++rank) {
      if (steps[rank] == steps[0]) continue;
      throw StorageError(directory, "rank " + std::to_string(rank) + " commits step " +
                                        steps[rank] + ", and rank 0 step " + steps[0]);
    }
    return digests;
  } catch (...) {
    // Every rank has the same texts, so rank 0 names no digest of this step.
    if (!own) store.abandon_commit();
    throw;
  }
}

// Rank 0 names the step of all. The broadcast is also what the others wait for: only behind it may
// they overwrite the step before.
void commit_in_two_phases(offload::SwapStore& store, zero::Communicator& ranks,
                          const std::string& directory, std::int64_t step,
                          const std::string& metadata) {
  offload::RankManifest manifest{.step = step,
                                 .digests = prepare_all(store, ranks, directory, step, metadata)};
  do_on_first(ranks, directory, [&] {
    offload::replace_rank_manifest(directory, manifest, store.durability());
    return std::string();
  });
  store.finish_commit();
}

}  // namespace

std::vector<std::string> gather_texts(zero::Communicator& ranks, const std::string& own,
                                      const std::string& label) {
  const auto world = static_cast<std::size_t>(ranks.world_size());
  const auto rank = static_cast<std::size_t>(ranks.rank());
  std::vector<std::uint64_t> sizes(world);
  sizes[rank] = own.size();
  ranks.all_gather(std::as_writable_bytes(std::span(sizes)), label);
  // Whole words: a transport may want aligned shards.
  const std::size_t longest = (*std::ranges::max_element(sizes) + 7) / 8 * 8;
  std::vector<std::string> texts(world);
  if (longest == 0) return texts;
  std::vector<std::byte> bytes(longest * world);
  std::memcpy(bytes.data() + rank * longest, own.data(), own.size());
  ranks.all_gather(bytes, label);
  for (std::size_t r = 0; r < world; ++r)
    texts[r].assign(reinterpret_cast<const char*>(bytes.data() + r * longest), sizes[r]);
  return texts;
}

std::string pack_texts(const std::vector<std::string>& texts) {
  std::string packed;
  for (const std::string& text : texts) packed += std::to_string(text.size()) + ":" + text;
  return packed;
}

std::vector<std::string> unpack_texts(const std::string& packed) {
  std::vector<std::string> texts;
  for (std::size_t at = 0; at < packed.size();) {
    const std::size_t colon = packed.find(':', at);
    std::size_t size = 0;
    const auto [stopped, problem] =
        std::from_chars(packed.data() + at, packed.data() + std::min(colon, packed.size()), size);
    const bool whole = problem == std::errc() && colon < packed.size() &&
                       stopped == packed.data() + colon && size <= packed.size() - colon - 1;
    SLUICE_CHECK(whole, "a text of several texts is damaged at byte " + std::to_string(at));
    texts.push_back(packed.substr(colon + 1, size));
    at = colon + 1 + size;
  }
  return texts;
}

std::string broadcast_text(zero::Communicator& ranks, const std::string& text,
                           const std::string& label) {
  std::array<std::uint64_t, 1> size{text.size()};
  ranks.broadcast(std::as_writable_bytes(std::span(size)), 0, label);
  std::string received = ranks.rank() == 0 ? text : std::string();
  received.resize(size[0]);
  if (!received.empty())
    ranks.broadcast(std::as_writable_bytes(std::span(received.data(), received.size())), 0, label);
  return received;
}

void do_on_all(zero::Communicator& ranks, const std::string& directory,
               const std::function<void()>& work) {
  const std::exception_ptr own = error_of(work);
  throw_first(
      own,
      told(own, [&] { return gather_texts(ranks, encode_failure(own), "failures of all ranks"); }),
      about(directory));
}

std::string do_on_first(zero::Communicator& ranks, const std::string& directory,
                        const std::function<std::string()>& work) {
  std::string text;
  std::exception_ptr own;
  if (ranks.rank() == 0) own = error_of([&] { text = work(); });
  // One broadcast for both: a first letter tells a failure from a result.
  const std::string sent = told(own, [&] {
    return broadcast_text(ranks, own ? "!" + encode_failure(own) : "=" + text,
                          "a result of rank 0");
  });
  if (own) std::rethrow_exception(own);
  if (sent.front() == '!') throw decode_failure(sent.substr(1), 0, about(directory));
  return sent.substr(1);
}

void commit_parts(offload::SwapStore& store, zero::Communicator& ranks,
                  const std::string& directory, std::int64_t step, const std::string& metadata) {
  if (ranks.world_size() == 1) {
    store.commit(step, metadata);
  } else if (store.durability() != Durability::none) {
    commit_in_two_phases(store, ranks, directory, step, metadata);
  } else {
    store.commit(step, metadata);
    release_parts(ranks, directory);  // the record of an orderly end, when more steps followed
  }
}

void release_parts(zero::Communicator& ranks, const std::string& directory) {
  do_on_first(ranks, directory, [&] {
    const auto closed = offload::load_rank_manifest(directory);
    if (closed && closed->world_size() == ranks.world_size())
      offload::remove_rank_manifest(directory);
    return std::string();
  });
}

void close_parts(offload::SwapStore& store, zero::Communicator& ranks,
                 const std::string& directory) {
  if (ranks.world_size() == 1 || store.durability() != Durability::none) {
    store.close_cleanly();
  } else if (store.committed_step() > 0) {
    commit_in_two_phases(store, ranks, directory, store.committed_step(),
                         store.committed_metadata());
  }
}

}  // namespace sluice::models
