#pragma once
// Typed errors. Every failure of the library is one of these; the message says what, where, how
// much and what to do. Programs map the types to exit codes (docs/cli.md).
//
// Completions of asynchronous work are values; they become one of these exceptions where the caller
// finishes the work (sluice/base/ticket.hpp).

#include <cerrno>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <system_error>

namespace sluice {

// Root of the errors that carry no errno.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller's mistake: an argument, a configuration value, a usage error, bad input data.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// A tier's budget, or the machine's memory, cannot hold what was asked for.
class OutOfMemory : public Error {
 public:
  OutOfMemory(std::string tier, std::uint64_t requested_bytes, std::uint64_t available_bytes,
              const std::string& what_for);
  const std::string& tier() const { return tier_; }
  std::uint64_t requested_bytes() const { return requested_bytes_; }
  std::uint64_t available_bytes() const { return available_bytes_; }

 private:
  std::string tier_;
  std::uint64_t requested_bytes_;
  std::uint64_t available_bytes_;
};

// A plan does not fit its budgets; nothing has been allocated. The message is the table with the
// changes that would fit.
class DoesNotFit : public Error {
 public:
  using Error::Error;
};

// A system call on a file failed. what() holds path, offset, size and the errno text.
class IoError : public std::system_error {
 public:
  IoError(int error_number, const std::string& operation, std::string path,
          std::uint64_t offset_bytes = 0, std::uint64_t size_bytes = 0,
          const std::string& advice = "");
  const std::string& path() const { return path_; }
  std::uint64_t offset_bytes() const { return offset_bytes_; }
  std::uint64_t size_bytes() const { return size_bytes_; }

 private:
  std::string path_;
  std::uint64_t offset_bytes_;
  std::uint64_t size_bytes_;
};

// Stored data cannot be used: damaged, locked by another run, of another model. No errno belongs to
// it.
class StorageError : public Error {
 public:
  StorageError(std::string path, const std::string& message);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A call of the CUDA runtime failed, or work that was given to a GPU did. what() holds the call,
// what it was for and the runtime's own text.
class CudaError : public Error {
 public:
  CudaError(int code, const std::string& code_name, const std::string& code_text,
            const std::string& call, const std::string& what_for);
  int code() const { return code_; }  // a cudaError_t

 private:
  int code_;
};

// Work was stopped on request (a signal); not a failure.
class Interrupted : public Error {
 public:
  explicit Interrupted(int signal_number);
  int signal_number() const { return signal_number_; }

 private:
  int signal_number_;
};

namespace detail {
[[noreturn]] void throw_check_failed(const char* file, int line, const std::string& message);
[[noreturn]] void throw_syscall_failed(int error_number, const char* operation,
                                       const std::string& path);
}  // namespace detail

}  // namespace sluice

// For anything a caller or the machine can cause; our own invariants use assert.
// The message is built on failure only. Throws InvalidArgument.
#define SLUICE_CHECK(condition, message)                                   \
  do {                                                                     \
    if (!(condition)) [[unlikely]]                                         \
      ::sluice::detail::throw_check_failed(__FILE__, __LINE__, (message)); \
  } while (false)

// Evaluates a system call that returns -1 on failure, repeating it on EINTR; throws IoError with
// the path.
#define SLUICE_SYSCALL(call, path)                                                         \
  ([&] {                                                                                   \
    auto sluice_result = (call);                                                           \
    while (sluice_result == -1 && errno == EINTR) sluice_result = (call);                  \
    if (sluice_result == -1) ::sluice::detail::throw_syscall_failed(errno, #call, (path)); \
    return sluice_result;                                                                  \
  }())
