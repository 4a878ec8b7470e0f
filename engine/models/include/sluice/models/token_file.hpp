#pragma once
// TokenFile: a file of tokens, read anywhere. The name says how many bytes a token has:
//   .bin           2, little-endian uint16
//   .u32           4, little-endian uint32, for vocabularies above 65,536
//   other names    1, text as bytes
// No LibTorch.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sluice/base/fd.hpp"

namespace sluice::models {

// Owns the open file. Thread-safe after construction. Every problem of the file is the user's
// mistake: all functions throw InvalidArgument that names it.
class TokenFile {
 public:
  // Throws when the file is absent, empty, unreadable, not a regular file, or no whole number of
  // tokens.
  TokenFile(const std::string& path, std::uint64_t vocabulary_size);

  const std::string& path() const { return path_; }
  std::size_t token_bytes() const { return token_bytes_; }  // 1, 2 or 4
  std::uint64_t token_count() const { return token_count_; }
  std::uint64_t size_bytes() const { return token_count_ * token_bytes_; }

  // Reads tokens [first, first + tokens.size()), which must lie in the file. Throws for a token not
  // below the vocabulary size (with its offset), and when the file was truncated meanwhile or
  // cannot be read.
  void read(std::uint64_t first, std::span<std::int64_t> tokens) const;
  // Reads bytes; throws when the file was truncated meanwhile or cannot be read.
  void read_bytes(std::uint64_t offset_bytes, std::span<unsigned char> bytes) const;
  // Throws for a token of `bytes`, the tokens from number `first` on, that is not below the
  // vocabulary size.
  void check(std::span<const unsigned char> bytes, std::uint64_t first) const;

 private:
  std::uint64_t token_at(std::span<const unsigned char> bytes, std::size_t i) const;
  void check_token(std::uint64_t token, std::uint64_t number) const;

  std::string path_;
  UniqueFd fd_;
  std::size_t token_bytes_ = 1;
  std::uint64_t token_count_ = 0;
  std::uint64_t vocabulary_size_ = 0;
};

// The files of a data set, in order: a file stands for itself, a folder for the files in it that
// are named .bin, .u32 or .txt, by name. Throws InvalidArgument for a folder without any.
std::vector<std::string> token_file_paths(const std::vector<std::string>& files_and_folders);

}  // namespace sluice::models
