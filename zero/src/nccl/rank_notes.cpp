#include "nccl/rank_notes.hpp"

#include <utility>

#include "sluice/base/error.hpp"

namespace sluice::zero {

namespace {

using Seconds = std::chrono::duration<double>;
// A rank that waits too has said so by then: all have the same limit.
constexpr Seconds kAnswer{3};

std::string of_rank(int rank) {
  return "rank " + std::to_string(rank);
}

}  // namespace

RankNotes::RankNotes(RankStore& store, std::string name, int rank, int world_size)
    : store_(store), name_(std::move(name)), rank_(rank), world_size_(world_size) {}

std::string RankNotes::key(const std::string& what) const {
  return "sluice/" + name_ + "/" + what;
}

std::string RankNotes::key(const std::string& what, int rank) const {
  return key(what + "/" + std::to_string(rank));
}

void RankNotes::give_id(const std::string& id) {
  store_.set(key("id"), id);
}

std::string RankNotes::take_id(Seconds limit) {
  std::optional<std::string> id = store_.get(key("id"), limit);
  if (!id.has_value()) throw Error("rank 0 has not started NCCL in time");
  return *id;
}

void RankNotes::has_joined() {
  store_.set(key("joined", rank_), "yes");
}

// The kind is one digit before the text.
void RankNotes::has_aborted(const AbortReason& why) {
  store_.set(key("aborted"), std::to_string(static_cast<int>(why.kind)) + of_rank(rank_) +
                                 " has aborted (" + why.text + ")");
}

void RankNotes::has_left(std::uint64_t calls) {
  store_.set(key("left", rank_), std::to_string(calls));
}

std::optional<AbortReason> RankNotes::find_abort() {
  const auto note = store_.get(key("aborted"), Seconds{0});
  if (!note) return std::nullopt;
  return AbortReason(note->substr(1), static_cast<FailureKind>(note->front() - '0'));
}

std::string RankNotes::find_end(std::uint64_t call) {
  for (int other = 0; other < world_size_; ++other) {
    if (other == rank_) continue;
    const auto left = store_.get(key("left", other), Seconds{0});
    // A rank may leave after its last call while this one still returns from it.
    if (left.has_value() && std::stoull(*left) < call)
      return of_rank(other) + " of " + std::to_string(world_size_) +
             " has left (see the error of rank " + std::to_string(other) + ")";
  }
  return "";
}

std::string RankNotes::ask_all(const std::string& call) {
  store_.set(key("waits", rank_), call);
  std::string text;
  for (int other = 0; other < world_size_; ++other) {
    if (other == rank_) continue;
    const auto waits = store_.get(key("waits", other), kAnswer);
    text += "; " + of_rank(other);
    text +=
        waits.has_value() ? " waits in " + *waits : " does not wait in a call or does not answer";
  }
  return text;
}

std::string RankNotes::find_missing() {
  std::string text;
  for (int other = 0; other < world_size_; ++other)
    if (!store_.get(key("joined", other), Seconds{0}).has_value())
      text += "; " + of_rank(other) + " has not joined";
  return text;
}

}  // namespace sluice::zero
