#pragma once
// Typed errors. Every failure of the library is one of these, except std::bad_function_call where a
// call needs a function and is given an empty one. The message says what failed, where, how much
// was involved and what to do. The program `sluice` maps the types to exit codes.
//
// Completions of asynchronous work are values. A completion becomes one of these exceptions when
// the caller finishes the work (sluice/base/ticket.hpp).
//
// Exceptions are values without shared mutable state; the macros are thread-safe.

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

// A tier's budget, or the machine's memory, cannot hold the requested bytes.
class OutOfMemory : public Error {
 public:
  // `what_for` begins the message: the purpose of the memory.
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

// A plan does not fit its budgets; nothing has been allocated. The message is the table of the
// budgets, with the changes that would make the plan fit.
class DoesNotFit : public Error {
 public:
  using Error::Error;
};

// A system call on a file failed. what() holds path, offset, size, advice and the errno text;
// code() holds the errno. EFBIG adds which limit it met. A size of 0 leaves offset and size out of
// the message.
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

// Stored data is unusable: damaged, locked by another run, or of another model. It carries no
// errno.
class StorageError : public Error {
 public:
  StorageError(std::string path, const std::string& message);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A call of the CUDA runtime failed, or work given to a GPU failed. what() holds the purpose, the
// call and the runtime's own text.
class CudaError : public Error {
 public:
  CudaError(int code, const std::string& code_name, const std::string& code_text,
            const std::string& call, const std::string& what_for);
  int code() const { return code_; }  // a cudaError_t

 private:
  int code_;
};

// A signal asked the work to stop. This is not a failure.
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

// Throws InvalidArgument with `message` when `condition` is false. For mistakes that a caller or
// the machine can cause; invariants of this code use assert. `message` is evaluated on failure
// only.
#define SLUICE_CHECK(condition, message)                                   \
  do {                                                                     \
    if (!(condition)) [[unlikely]]                                         \
      ::sluice::detail::throw_check_failed(__FILE__, __LINE__, (message)); \
  } while (false)

// Result of a system call that returns -1 on failure. Repeats the call on EINTR. Throws IoError
// with `path` on any other errno.
#define SLUICE_SYSCALL(call, path)                                                         \
  ([&] {                                                                                   \
    auto sluice_result = (call);                                                           \
    while (sluice_result == -1 && errno == EINTR) sluice_result = (call);                  \
    if (sluice_result == -1) ::sluice::detail::throw_syscall_failed(errno, #call, (path)); \
    return sluice_result;                                                                  \
  }())
