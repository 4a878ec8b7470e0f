#include "record/event_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "record/line_file.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/host_name.hpp"

namespace sluice::train {

namespace {

constexpr const char* kPrefix = "events.out.tfevents.";

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0x82F63B78U : 0U);
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kCrcTable = crc_table();

// An integer as `Bytes` bytes, the lowest first.
template <int Bytes>
std::string little_endian(std::uint64_t value) {
  std::string text;
  for (int i = 0; i < Bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

// record_writer.cc: the CRC of data that may hold CRCs itself is rotated and shifted.
std::string masked_crc(const std::string& bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return little_endian<4>(((crc >> 15U) | (crc << 17U)) + 0xA282EAD8U);
}

std::string record(const std::string& data) {
  const std::string length = little_endian<8>(data.size());
  return length + masked_crc(length) + data + masked_crc(data);
}

// Fields of protocol buffers: a number with the kind of the value, then the value.
std::string varint(std::uint64_t value) {
  std::string text;
  for (; value >= 128; value >>= 7U) text += static_cast<char>(value | 128U);
  return text + static_cast<char>(value);
}
enum class Kind { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };
std::string key(unsigned number, Kind kind) {
  return varint(number << 3U | static_cast<unsigned>(kind));
}
std::string bytes_field(unsigned number, const std::string& bytes) {
  return key(number, Kind::bytes) + varint(bytes.size()) + bytes;
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// event.proto: wall_time = 1, step = 2, and `what`.
std::string event(std::int64_t step, const std::string& what) {
  return record(key(1, Kind::fixed64) +
                little_endian<8>(std::bit_cast<std::uint64_t>(now_seconds())) +
                key(2, Kind::varint) + varint(static_cast<std::uint64_t>(step)) + what);
}

// summary.proto: Summary.value = 1; of a value tag = 1, simple_value = 2.
std::string scalar_summary(const Scalar& scalar) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(scalar.value));
  return bytes_field(5, bytes_field(1, bytes_field(1, scalar.tag) + key(2, Kind::fixed32) +
                                           little_endian<4>(bits)));
}

// The newest time in the names of event files there; 0 without any.
long long newest_time(const std::string& directory) {
  long long newest = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kPrefix))
      newest = std::max(newest, std::atoll(name.c_str() + std::string(kPrefix).size()));
  }
  return newest;
}

AppendFile new_file_in(const std::string& directory, const std::string& header) {
  make_directory(directory);
  const std::string host = host_name();
  // Two starts in one second, or a clock that was set back, keep the order of the names.
  for (auto time = std::max(static_cast<long long>(now_seconds()), newest_time(directory) + 1);;
       ++time) {
    char digits[32];
    std::snprintf(digits, sizeof(digits), "%010lld", time);
    const std::string path =
        directory + "/" + kPrefix + digits + "." + host + "." + std::to_string(::getpid()) + ".0";
    constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
    UniqueFd fd(::open(path.c_str(), kFlags | O_EXCL, 0644));
    const auto open_again = [path] {
      return UniqueFd(SLUICE_SYSCALL(::open(path.c_str(), kFlags, 0644), path));
    };
    if (fd) return AppendFile(std::move(fd), path, 0, open_again, header);
    if (errno != EEXIST) throw IoError(errno, "create", path);
  }
}

}  // namespace

std::uint32_t crc32c(const std::string& bytes) {
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const char byte : bytes)
    crc = (crc >> 8U) ^ kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFFU];
  return ~crc;
}

// session_log = 7 with status = 1, START = 1.
EventFile::EventFile(const std::string& directory, std::int64_t first_step)
    : file_(new_file_in(directory,
                        event(first_step, bytes_field(3, "brain.Event:2")) +
                            event(first_step, bytes_field(7, key(1, Kind::varint) + varint(1))))) {}

void EventFile::append(const std::vector<Scalar>& scalars, std::int64_t step) {
  std::string text;
  for (const Scalar& scalar : scalars) text += event(step, scalar_summary(scalar));
  file_.append(text);
}

}  // namespace sluice::train
