#pragma once
// Files that a command writes where it was told to: checked before minutes are spent on the
// content, written whole. Thread-safe: free functions without state.

#include <string>
#include <vector>

namespace sluice::cli {

// Writes the text as the whole file, which may be behind links; after a failure no partial file is
// left, and a link stays. Throws IoError.
void write_file(const std::string& path, const std::string& text);

// Whether write_file can write `path`; changes nothing. `flag` is how `path` was given. Throws
// InvalidArgument when `path` is a directory, one of the `inputs`, the bench file of a directory
// among the inputs, or part of a training run. Throws IoError.
void check_writable(const std::string& flag, const std::string& path,
                    const std::vector<std::string>& inputs,
                    const std::string& what_inputs_are = "the file that is measured");

}  // namespace sluice::cli
