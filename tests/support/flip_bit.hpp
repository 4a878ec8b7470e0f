#pragma once
// Damage to a file. Thread-safe: a free function without state.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "sluice/base/error.hpp"
#include "sluice/base/fd.hpp"

namespace sluice::test {

inline void flip_bit(const std::string& path, std::uint64_t offset_bytes, unsigned bit) {
  const UniqueFd fd(SLUICE_SYSCALL(::open(path.c_str(), O_RDWR | O_CLOEXEC), path));
  unsigned char byte = 0;
  ASSERT_EQ(::pread(fd.get(), &byte, 1, static_cast<off_t>(offset_bytes)), 1);
  byte = static_cast<unsigned char>(byte ^ (1U << bit));
  ASSERT_EQ(::pwrite(fd.get(), &byte, 1, static_cast<off_t>(offset_bytes)), 1);
}

}  // namespace sluice::test
