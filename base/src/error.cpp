#include "sluice/base/error.hpp"

#include <sys/resource.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <utility>

#include "sluice/base/log.hpp"
#include "sluice/base/rank_failure.hpp"
#include "sluice/base/text.hpp"

namespace sluice {

OutOfMemory::OutOfMemory(std::string tier, std::uint64_t requested_bytes,
                         std::uint64_t available_bytes, const std::string& what_for)
    : Error(what_for + ": " + format_bytes(requested_bytes) + " requested on tier " + tier + ", " +
            format_bytes(available_bytes) + " available"),
      tier_(std::move(tier)),
      requested_bytes_(requested_bytes),
      available_bytes_(available_bytes) {}

namespace {
// The way out of EFBIG, which says only that the file would become too large.
std::string size_advice() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return "the file system takes no file of this length";
  return "this process may write files of up to " + format_bytes(limit.rlim_cur) +
         " (RLIMIT_FSIZE): raise the limit (ulimit -f)";
}

// The way out of EMFILE.
std::string open_files_advice() {
  rlimit limit{};
  const std::string most = ::getrlimit(RLIMIT_NOFILE, &limit) == 0
                               ? " " + std::to_string(limit.rlim_cur) + " files"
                               : " no more files";
  return "this process may open" + most + ": raise the limit (ulimit -n)";
}

// The way out of ENOSPC where the file system counts files and can hold no more; empty where it has
// room for files.
std::string free_files_advice(const std::string& path) {
  struct statvfs info {};
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (::statvfs(path.c_str(), &info) != 0 && ::statvfs(folder.c_str(), &info) != 0) return "";
  if (info.f_files == 0 || info.f_favail > 0) return "";  // without a count: btrfs, some servers
  return "its file system has no free inodes, and so no room for another file: remove files there, "
         "or choose another directory";
}

// The way out of errors whose texts do not say it; empty for the others.
std::string advice_of(int error_number, const std::string& operation, const std::string& path) {
  if (operation == "flock" && (error_number == ENOSYS || error_number == EOPNOTSUPP))
    return "its file system takes no locks as it is mounted (Lustre does with -o flock): mount it "
           "so, or choose a directory on another one";
  switch (error_number) {
    case ENOSPC:
      return free_files_advice(path);
    case EFBIG:
      return size_advice();
    case EMFILE:
      return open_files_advice();
    case ENFILE:
      return "the machine has no more open files: raise sysctl fs.file-max, or end other programs";
    case ENOLCK:
      return "the file system or its server takes no more locks: choose a directory on another one";
    case EBADF:
      return "the file is closed, or was opened for the other direction only";
    default:
      return "";
  }
}

std::string io_message(int error_number, const std::string& operation, const std::string& path,
                       std::uint64_t offset_bytes, std::uint64_t size_bytes,
                       const std::string& advice) {
  std::string message = path + ": " + operation;
  if (size_bytes != 0) {
    message +=
        " of " + std::to_string(size_bytes) + " bytes at offset " + std::to_string(offset_bytes);
  }
  const std::string known = advice_of(error_number, operation, path);
  const std::string all_advice = advice + (advice.empty() || known.empty() ? "" : "; ") + known;
  if (!all_advice.empty()) message += " (" + all_advice + ")";
  return message;
}
}  // namespace

IoError::IoError(int error_number, const std::string& operation, std::string path,
                 std::uint64_t offset_bytes, std::uint64_t size_bytes, const std::string& advice)
    : std::system_error(
          error_number, std::generic_category(),
          io_message(error_number, operation, path, offset_bytes, size_bytes, advice)),
      path_(std::move(path)),
      offset_bytes_(offset_bytes),
      size_bytes_(size_bytes) {}

StorageError::StorageError(std::string path, const std::string& message)
    : Error(path + ": " + message), path_(std::move(path)) {}

CudaError::CudaError(int code, const std::string& code_name, const std::string& code_text,
                     const std::string& call, const std::string& what_for)
    : Error(what_for + ": " + call + ": " + code_text + " (" + code_name + ")"), code_(code) {}

Interrupted::Interrupted(int signal_number)
    : Error(signal_number == SIGTERM  ? "terminated"
            : signal_number == SIGHUP ? "the terminal was closed"
                                      : "interrupted"),
      signal_number_(signal_number) {}

namespace detail {

void throw_check_failed(const char* file, int line, const std::string& message) {
  // A position in the code helps debugging, not the reader of the message.
  log(LogLevel::debug, std::string(file) + ":" + std::to_string(line) + ": " + message);
  throw InvalidArgument(message);
}

void throw_syscall_failed(int error_number, const char* operation, const std::string& path) {
  std::string name = operation;
  name = name.substr(0, name.find('('));
  if (name.rfind("::", 0) == 0) name = name.substr(2);
  throw IoError(error_number, name, path);
}

}  // namespace detail
FailureKind failure_kind(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const RankFailure& failure) {
    return failure.kind();
  } catch (const InvalidArgument&) {
    return FailureKind::usage;
  } catch (const DoesNotFit&) {
    return FailureKind::does_not_fit;
  } catch (const OutOfMemory&) {
    return FailureKind::does_not_fit;
  } catch (const IoError&) {
    return FailureKind::storage;
  } catch (const StorageError&) {
    return FailureKind::storage;
  } catch (const std::filesystem::filesystem_error&) {
    return FailureKind::storage;
  } catch (...) {
    return FailureKind::other;
  }
}

std::string failure_text(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "an exception of an unknown type";
  }
}

// The kind is one digit.
std::string encode_failure(const std::exception_ptr& error) {
  if (!error) return "";
  return std::to_string(static_cast<int>(failure_kind(error))) + failure_text(error);
}

RankFailure decode_failure(const std::string& encoded, int rank, const std::string& before) {
  std::string text = encoded.substr(1);
  // A path that begins both is named once.
  if (text.starts_with(before)) text.erase(0, before.size());
  return {static_cast<FailureKind>(encoded.front() - '0'),
          before + "rank " + std::to_string(rank) + ": " + text};
}

}  // namespace sluice
