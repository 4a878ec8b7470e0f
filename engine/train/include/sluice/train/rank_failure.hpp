#pragma once
// RankFailure: this rank ends because another one has failed, or because all ranks found one
// mistake that rank 0 reports. No LibTorch. Exceptions are values without shared mutable state.

#include <string>

#include "sluice/base/error.hpp"

namespace sluice::train {

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

}  // namespace sluice::train
