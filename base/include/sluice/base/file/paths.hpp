#pragma once
// Files by their path: what one holds, and which one a path means. Thread-safe: free functions
// without state.

#include <cstdint>
#include <string>

namespace sluice {

// Throws StorageError unless `path` is a regular file: reading any other kind may never end. Throws
// IoError when the system does not tell.
void check_regular_file(const std::string& path);

// The content of the file at `path`. Throws StorageError when it is not regular or longer than
// `most_bytes`, IoError when opening or reading fails.
std::string read_regular_file(const std::string& path, std::uint64_t most_bytes);

// The file that opening `path` opens or makes: `path` itself, or what symbolic links lead to, which
// need not exist. Renaming another file to `path` would replace the link.
std::string file_behind_links(const std::string& path);

// The first path of steps.1.jsonl, steps.2.jsonl, ... that does not exist, for a `path`
// steps.jsonl. Another process may create it at any time. Throws std::filesystem_error when the
// system does not tell.
std::string free_numbered_path(const std::string& path);

}  // namespace sluice
