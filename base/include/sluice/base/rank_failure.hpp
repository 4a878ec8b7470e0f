#pragma once
// RankFailure: this rank ends because another one has failed, or because all ranks found one
// mistake that rank 0 reports. And failures as texts that ranks send each other. Exceptions are
// values without shared mutable state; the functions are thread-safe.

#include <exception>
#include <string>

#include "sluice/base/error.hpp"

namespace sluice {

// The types of sluice/base/error.hpp that a program tells apart by its exit code.
enum class FailureKind {
  other,
  usage,         // InvalidArgument
  does_not_fit,  // DoesNotFit, OutOfMemory
  storage,       // IoError, StorageError
};

// The rank at fault throws the error itself. So a program shows one message, and all its ranks have
// one exit code.
class RankFailure : public Error {
 public:
  // `what` names the rank at fault, and has its message.
  RankFailure(FailureKind kind, const std::string& what) : Error(what), kind_(kind) {}
  FailureKind kind() const { return kind_; }

 private:
  FailureKind kind_;
};

// The kind of an error, which is not null, and its text.
FailureKind failure_kind(const std::exception_ptr& error);
std::string failure_text(const std::exception_ptr& error);

// The failure of a rank as the others get it; empty for null.
std::string encode_failure(const std::exception_ptr& error);
// As the others throw it. `encoded` is not empty; `before` precedes the name of the rank.
RankFailure decode_failure(const std::string& encoded, int rank, const std::string& before = "");

}  // namespace sluice
