#pragma once
// SwapPlace: the directory of a store or a scratch file. With several directories, each on its own
// drive, the files are striped over all of them (sluice/nvme/striped_file.hpp).
//
// A value; thread-compatible.

#include <string>
#include <utility>
#include <vector>

namespace sluice::offload {

class HeldDirectories;

struct SwapPlace {
  // NOLINTBEGIN(google-explicit-constructor): most places are one directory
  SwapPlace(std::string the_directory) : directory(std::move(the_directory)) {}
  SwapPlace(const char* the_directory) : directory(the_directory) {}
  // NOLINTEND(google-explicit-constructor)
  // The first directory holds the lock and the manifest. `the_weights`: one for each directory;
  // empty: equal.
  SwapPlace(std::vector<std::string> directories, std::vector<unsigned> the_weights)
      : weights(std::move(the_weights)) {
    if (directories.empty()) return;
    directory = directories.front();
    further.assign(directories.begin() + 1, directories.end());
  }

  std::vector<std::string> directories() const {
    std::vector<std::string> all{directory};
    all.insert(all.end(), further.begin(), further.end());
    return all;
  }

  std::string directory;
  std::vector<std::string> further;
  std::vector<unsigned> weights;
  // Directories that the caller has locked and keeps locked as long as the store lives: the store
  // does not lock them again. May be null.
  const HeldDirectories* held = nullptr;
};

}  // namespace sluice::offload
