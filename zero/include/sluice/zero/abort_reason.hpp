#pragma once
// AbortReason: why a rank ends its calls, as Communicator::abort() tells it to the other ranks. A
// value. Thread-compatible: callers synchronise.

#include <exception>
#include <string>
#include <utility>

#include "sluice/base/rank_failure.hpp"

namespace sluice::zero {

struct AbortReason {
  // NOLINTBEGIN(google-explicit-constructor): a text alone is a reason
  AbortReason(const char* why) : text(why) {}
  AbortReason(std::string why, FailureKind of = FailureKind::other)
      : text(std::move(why)), kind(of) {}
  // NOLINTEND(google-explicit-constructor)
  // An error that ends this rank. It is not null.
  explicit AbortReason(const std::exception_ptr& error);

  // The error of this rank's calls from then on: RankFailure when by_another, else Error. `before`
  // precedes the text.
  [[noreturn]] void raise(const std::string& before) const;

  std::string text;
  FailureKind kind = FailureKind::other;  // the calls of the other ranks throw RankFailure with it
  bool by_another = false;                // a RankFailure: this rank ends because another one does
};

}  // namespace sluice::zero
