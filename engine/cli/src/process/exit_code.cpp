#include "process/exit_code.hpp"

#include <filesystem>
#include <new>
#include <string>

#include "sluice/base/error.hpp"
#include "sluice/base/rank_failure.hpp"
#include "sluice/config/config_error.hpp"

namespace sluice::cli {

namespace {

int exit_code_of(FailureKind kind) {
  switch (kind) {
    case FailureKind::usage:
      return kExitUsage;
    case FailureKind::does_not_fit:
      return kExitDoesNotFit;
    case FailureKind::storage:
      return kExitStorage;
    case FailureKind::other:
      return kExitOther;
  }
  return kExitOther;
}

// oneDNN's error for a machine that refuses it memory does not say so.
std::string explained(const std::string& said) {
  if (!said.starts_with("could not create a primitive")) return said;
  return said +
         ": oneDNN, which computes for LibTorch, says so where it gets no memory; the machine is "
         "out of memory, or a limit (ulimit -v, a container's) is below what the plan needs";
}

}  // namespace

Failure classify(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const RankFailure& e) {
    return {exit_code_of(e.kind()), e.what(), false, true};
  } catch (const config::ConfigError& e) {
    return {kExitUsage, e.what(), true};
  } catch (const InvalidArgument& e) {
    return {kExitUsage, e.what()};
  } catch (const DoesNotFit& e) {
    return {kExitDoesNotFit, e.what()};
  } catch (const OutOfMemory& e) {
    return {kExitDoesNotFit, e.what()};
  } catch (const IoError& e) {
    return {kExitStorage, e.what()};
  } catch (const StorageError& e) {
    return {kExitStorage, e.what()};
  } catch (const Interrupted& e) {
    return {exit_code_of_signal(e.signal_number()), e.what()};
  } catch (const std::filesystem::filesystem_error& e) {
    return {kExitStorage, e.path1().string() + ": " + e.code().message()};
  } catch (const std::bad_alloc&) {
    return {kExitOther,
            "the machine refused an allocation: it is out of memory, or a limit (ulimit -v, a "
            "container's) is below what the plan needs"};
  } catch (const std::exception& e) {
    return {kExitOther, explained(e.what())};
  } catch (...) {
    return {kExitOther, "an exception of an unknown type"};
  }
}

}  // namespace sluice::cli
