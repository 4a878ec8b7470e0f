#pragma once
// Files that a command was told to read. Thread-safe: free functions without state.

#include <string>

namespace sluice::cli {

// Throws InvalidArgument "FLAG: PATH: why" when the file cannot be read. Called first, so that the
// user learns it before anything is loaded. Without a flag: "PATH: why".
void require_file(const std::string& flag, const std::string& path);
void require_file(const std::string& path);
// Whether `path` is a regular file: no pipe, which can be read only once, and no configuration in
// base64 in place of a path.
bool is_file(const std::string& path);
// Whether `path` can be read once: a pipe or a terminal.
bool is_pipe(const std::string& path);
void require_file_or_folder(const std::string& flag, const std::string& path);

}  // namespace sluice::cli
