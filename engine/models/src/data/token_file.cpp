#include "sluice/models/token_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"

namespace sluice::models {
namespace {

// A problem that shows as errno is the user's mistake too (exit code 2).
UniqueFd open_tokens(const std::string& path, std::uint64_t& size_bytes) {
  // O_NONBLOCK: opening a FIFO would otherwise wait for a writer.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  SLUICE_CHECK(fd, "data file " + path + ": cannot be opened: " + std::strerror(errno));
  struct stat info {};
  SLUICE_CHECK(::fstat(fd.get(), &info) == 0,
               "data file " + path + ": cannot be examined: " + std::strerror(errno));
  SLUICE_CHECK(!S_ISDIR(info.st_mode), "data file " + path + ": is a directory");
  SLUICE_CHECK(
      S_ISREG(info.st_mode),
      "data file " + path + ": is not a regular file, which windows are drawn from anywhere in");
  SLUICE_CHECK(info.st_size > 0, "data file " + path + ": is empty");
  size_bytes = static_cast<std::uint64_t>(info.st_size);
  return fd;
}

std::size_t token_bytes_of(const std::string& path) {
  if (path.ends_with(".bin")) return sizeof(std::uint16_t);
  return path.ends_with(".u32") ? sizeof(std::uint32_t) : 1;
}

// A loop without branches. Tokens are little-endian, as are the processors that Sluice runs on.
template <typename Token>
std::uint64_t largest_of(std::span<const unsigned char> bytes) {
  Token largest = 0;
  for (std::size_t at = 0; at + sizeof(Token) <= bytes.size(); at += sizeof(Token)) {
    Token token = 0;
    std::memcpy(&token, bytes.data() + at, sizeof(token));
    largest = std::max(largest, token);
  }
  return largest;
}

std::uint64_t largest_of(std::span<const unsigned char> bytes, std::size_t token_bytes) {
  if (token_bytes == 1) return largest_of<std::uint8_t>(bytes);
  return token_bytes == 2 ? largest_of<std::uint16_t>(bytes) : largest_of<std::uint32_t>(bytes);
}

}  // namespace

TokenFile::TokenFile(const std::string& path, std::uint64_t vocabulary_size)
    : path_(path), token_bytes_(token_bytes_of(path)), vocabulary_size_(vocabulary_size) {
  std::uint64_t size_bytes = 0;
  fd_ = open_tokens(path, size_bytes);
  const std::string type = token_bytes_ == 2 ? "uint16" : "uint32";
  SLUICE_CHECK(size_bytes % token_bytes_ == 0,
               "data file " + path + ": " + format_count(size_bytes) +
                   " bytes are no whole number of " + type +
                   " tokens (a .bin file holds little-endian uint16, a .u32 file little-endian "
                   "uint32; other names are read as bytes)");
  token_count_ = size_bytes / token_bytes_;
}

void TokenFile::read(std::uint64_t first, std::span<std::int64_t> tokens) const {
  assert(first + tokens.size() <= token_count_);
  std::vector<unsigned char> bytes(tokens.size() * token_bytes_);
  read_bytes(first * token_bytes_, bytes);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::uint64_t token = token_at(bytes, i);
    check_token(token, first + i);
    tokens[i] = static_cast<std::int64_t>(token);
  }
}

std::uint64_t TokenFile::token_at(std::span<const unsigned char> bytes, std::size_t i) const {
  std::uint64_t token = 0;
  for (std::size_t b = token_bytes_; b > 0; --b)
    token = token << 8U | bytes[token_bytes_ * i + b - 1];
  return token;
}

void TokenFile::check_token(std::uint64_t token, std::uint64_t number) const {
  SLUICE_CHECK(token < vocabulary_size_,
               "data file " + path_ + ": token " + std::to_string(token) + " at byte " +
                   format_count(number * token_bytes_) + " (token " + format_count(number) +
                   ") is not below the model's vocabulary of " + format_count(vocabulary_size_));
}

void TokenFile::check(std::span<const unsigned char> bytes, std::uint64_t first) const {
  if (vocabulary_size_ >> (8 * token_bytes_) != 0) return;  // every token is below it
  if (largest_of(bytes, token_bytes_) < vocabulary_size_) return;
  for (std::size_t i = 0; i < bytes.size() / token_bytes_; ++i)
    check_token(token_at(bytes, i), first + i);
}

void TokenFile::read_bytes(std::uint64_t offset_bytes, std::span<unsigned char> bytes) const {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::pread(fd_.get(), bytes.data() + done, bytes.size() - done,
                                static_cast<off_t>(offset_bytes + done));
    if (got < 0 && errno == EINTR) continue;
    SLUICE_CHECK(got >= 0, "data file " + path_ + ": cannot be read at byte " +
                               format_count(offset_bytes + done) + ": " + std::strerror(errno));
    SLUICE_CHECK(got > 0, "data file " + path_ + ": ends at byte " +
                              format_count(offset_bytes + done) +
                              ": another program has cut it short while it was in use; restore it");
    done += static_cast<std::size_t>(got);
  }
}

std::vector<std::string> token_file_paths(const std::vector<std::string>& files_and_folders) {
  namespace fs = std::filesystem;
  std::vector<std::string> paths;
  for (const std::string& given : files_and_folders) {
    std::error_code error;
    if (!fs::is_directory(given, error)) {
      paths.push_back(given);
      continue;
    }
    std::vector<std::string> found;
    for (fs::directory_iterator entry(given, error), end; !error && entry != end;
         entry.increment(error)) {
      const std::string extension = entry->path().extension().string();
      if (extension == ".bin" || extension == ".u32" || extension == ".txt")
        found.push_back(entry->path().string());
    }
    SLUICE_CHECK(!error, "data folder " + given + ": cannot be read: " + error.message());
    SLUICE_CHECK(!found.empty(), "data folder " + given + ": has no file named .bin, .u32 or .txt");
    std::sort(found.begin(), found.end());
    paths.insert(paths.end(), found.begin(), found.end());
  }
  return paths;
}

}  // namespace sluice::models
