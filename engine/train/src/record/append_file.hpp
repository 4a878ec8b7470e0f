#pragma once
// AppendFile: an open file that grows by whole texts, so that readers and a resumed run find no
// half of one, except the last after a kill.

#include <cstdint>
#include <functional>
#include <string>

#include "sluice/base/fd.hpp"

namespace sluice::train {

// Confined to the thread that trains.
class AppendFile {
 public:
  // Opens the file for appending (O_APPEND), or makes it. Throws IoError, StorageError.
  using Open = std::function<UniqueFd()>;

  // `fd`: as from `open`; the file has `whole_bytes`. `path` is the file's. `header`: what an empty
  // file begins with, before the first text.
  AppendFile(UniqueFd fd, std::string path, std::uint64_t whole_bytes, Open open,
             std::string header);

  const std::string& path() const { return path_; }
  bool is_empty() const { return whole_bytes_ == 0; }
  // Appends with one write(). Where the file was removed or replaced, opens another one, with a
  // warning. Throws IoError, and what `open` throws; the text then waits for the next call, which
  // writes it first.
  void append(const std::string& text);
  // Blocks until what append() wrote, and the file's name, survive loss of power. Texts that wait
  // are left out. Throws IoError.
  void sync();
  // Writes the texts that wait, and asks the drive whether it has taken all that was written (NFS
  // tells at a close). Throws as append().
  void finish();

 private:
  std::string path_;
  UniqueFd fd_;
  std::uint64_t whole_bytes_;  // of the file, without a part of a text
  Open open_;
  std::string header_;
  std::string waiting_;  // some hundred bytes a step
  bool has_synced_name_ = false;
  bool is_torn_ = false;  // a write has failed: the file may have a part of a text
};

}  // namespace sluice::train
