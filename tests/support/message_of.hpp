#pragma once
// message_of: the messages of errors that a test expects. Thread-safe: free functions.

#include <gtest/gtest.h>

#include <exception>
#include <string>

namespace sluice::test {

// The message of the E that `call()` throws; another exception passes through. Where none is
// thrown, the test fails, and the message is "".
template <typename E = std::exception, typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

// The message of `error`; "" for null.
inline std::string message_of(const std::exception_ptr& error) {
  return error ? message_of([&] { std::rethrow_exception(error); }) : "";
}

}  // namespace sluice::test
