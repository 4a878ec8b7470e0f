#include "sluice/models/token_file.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>

#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/text.hpp"

namespace sluice::models {
namespace {

// Why open() failed, and what to do where that is known.
std::string why_unopened(const std::string& path, int error) {
  std::error_code ignored;
  const std::filesystem::path target = std::filesystem::read_symlink(path, ignored);
  if (error == ENOENT && !target.empty())
    return "is a link to " + target.string() +
           ", which does not exist; restore that file, or "
           "remove the link";
  std::string why = "cannot be opened: " + std::string(std::strerror(error));
  if (error != EMFILE) return why;
  struct rlimit limit {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return why + ". A run keeps all its data files open, and this process may open " +
         format_count(limit.rlim_cur) +
         " files: raise that limit (ulimit -n, as root beyond the hard limit), or join the data "
         "into fewer files";
}

// Where the file ends; `asked` if it has bytes there again.
std::uint64_t end_of(int fd, std::uint64_t asked) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return asked;
  return std::min(asked, static_cast<std::uint64_t>(info.st_size));
}

// A problem that shows as errno is the user's mistake too (exit code 2).
UniqueFd open_tokens(const std::string& path, std::uint64_t& size_bytes) {
  // O_NONBLOCK: opening a FIFO would otherwise wait for a writer.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  SLUICE_CHECK(fd, "data file " + path + ": " + why_unopened(path, errno));
  struct stat info {};
  SLUICE_CHECK(::fstat(fd.get(), &info) == 0,
               "data file " + path + " cannot be examined: " + std::strerror(errno));
  SLUICE_CHECK(!S_ISDIR(info.st_mode), "data file " + path + " is a directory");
  SLUICE_CHECK(S_ISREG(info.st_mode),
               "data file " + path +
                   " is not a regular file, which windows are drawn from anywhere in; remove it "
                   "from the data, or copy what it gives into a file");
  SLUICE_CHECK(info.st_size > 0, "data file " + path + " is empty");
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

bool has_token_name(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".bin" || extension == ".u32" || extension == ".txt";
}

// Why an entry with the name of a token file holds no tokens to miss: a folder, or nothing at all.
// Empty for every other one, which is opened and may be refused then.
std::string why_left_out(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return "a folder";
  const bool is_file = std::filesystem::is_regular_file(path, error);
  return is_file && std::filesystem::file_size(path, error) == 0 && !error ? "empty" : "";
}

// "x.txt (a folder), y.bin (empty)", of a long list the first.
std::string listed(const std::vector<std::string>& entries) {
  constexpr std::size_t kMost = 5;
  const std::span first = std::span(entries).first(std::min(entries.size(), kMost));
  const std::size_t more = entries.size() - first.size();
  return join(first, ", ") + (more == 0 ? "" : " and " + format_count(more) + " more");
}

// The token files of a folder by name. Entries that hold no tokens are left out with one line.
std::vector<std::string> files_of_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  std::vector<std::string> found, left_out;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!has_token_name(entry->path())) continue;
    const std::string why = why_left_out(entry->path());
    if (why.empty()) {
      found.push_back(entry->path().string());
    } else {
      left_out.push_back(entry->path().filename().string() + " (" + why + ")");
    }
  }
  SLUICE_CHECK(!error, "data folder " + folder + ": cannot be read: " + error.message());
  std::sort(found.begin(), found.end());
  std::sort(left_out.begin(), left_out.end());
  SLUICE_CHECK(!found.empty(), "data folder " + folder + ": has no file named .bin, .u32 or .txt" +
                                   (left_out.empty() ? "" : " but " + listed(left_out)));
  if (!left_out.empty())
    log(LogLevel::info, "data folder " + folder + ": left out: " + listed(left_out));
  return found;
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
                              format_count(end_of(fd_.get(), offset_bytes + done)) +
                              ": another program has cut it short while it was in use; restore it");
    done += static_cast<std::size_t>(got);
  }
}

std::vector<std::string> token_file_paths(const std::vector<std::string>& files_and_folders) {
  std::vector<std::string> paths;
  for (const std::string& given : files_and_folders) {
    std::error_code error;
    if (!std::filesystem::is_directory(given, error)) {
      paths.push_back(given);
      continue;
    }
    const std::vector<std::string> found = files_of_folder(given);
    paths.insert(paths.end(), found.begin(), found.end());
  }
  return paths;
}

}  // namespace sluice::models
