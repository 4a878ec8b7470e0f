#include "sluice/base/error.hpp"

#include <sys/resource.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "sluice/base/log.hpp"
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

std::string io_message(int error_number, const std::string& operation, const std::string& path,
                       std::uint64_t offset_bytes, std::uint64_t size_bytes,
                       const std::string& advice) {
  std::string message = path + ": " + operation;
  if (size_bytes != 0) {
    message +=
        " of " + std::to_string(size_bytes) + " bytes at offset " + std::to_string(offset_bytes);
  }
  std::string all_advice = advice;
  if (error_number == EFBIG) all_advice += (advice.empty() ? "" : "; ") + size_advice();
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
    : Error(signal_number == SIGTERM ? "terminated" : "interrupted"),
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
}  // namespace sluice
