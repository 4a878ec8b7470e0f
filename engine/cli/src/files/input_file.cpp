#include "files/input_file.hpp"

#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "sluice/base/error.hpp"

namespace sluice::cli {

namespace {

// The reason why `path` cannot be read; empty for a readable file.
std::string why_unreadable(const std::string& path, bool may_be_folder = false) {
  if (path.empty()) return "the name of a file is empty";
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    std::error_code ignored;
    const std::filesystem::path target = std::filesystem::read_symlink(path, ignored);
    return target.empty() ? "there is no such file"
                          : "a link to " + target.string() + ", which does not exist";
  }
  if (!may_be_folder && std::filesystem::is_directory(status))
    return "this is a directory, expected a file";
  return ::access(path.c_str(), R_OK) == 0 ? "" : "cannot be read (permissions?)";
}

}  // namespace

void require_file(const std::string& path) {
  if (const std::string why = why_unreadable(path); !why.empty())
    throw InvalidArgument(path.empty() ? why : path + ": " + why);
}

void require_file(const std::string& flag, const std::string& path) {
  if (const std::string why = why_unreadable(path); !why.empty())
    throw InvalidArgument(flag + ": " + path + ": " + why);
}

void require_file_or_folder(const std::string& flag, const std::string& path) {
  if (const std::string why = why_unreadable(path, true); !why.empty())
    throw InvalidArgument(flag + ": " + path + ": " + why);
}

bool is_file(const std::string& path) {
  std::error_code error;  // a configuration in base64 is too long for a name
  return std::filesystem::is_regular_file(path, error);
}

bool is_pipe(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status found = std::filesystem::status(path, error);
  return std::filesystem::is_fifo(found) || std::filesystem::is_character_file(found);
}

}  // namespace sluice::cli
