#pragma once
// The record that recorder.cpp writes of what a process does to the files below a folder, and
// power_loss.hpp reads: one entry after the other, a header, then a name, a second name and data.
//
// Thread-safe: values.

#include <cstdint>

namespace sluice::power {

enum class Op : std::uint32_t {
  create,       // name, inode
  make_folder,  // name, inode
  write,        // inode, offset, data
  resize,       // inode, offset: the new size
  allocate,     // inode, offset: the size at least
  sync_file,    // inode
  sync_folder,  // inode
  rename,       // name -> second name
  unlink,       // name; a folder too
  mark,         // data: what the process said
};

struct EntryHeader {
  Op op = Op::mark;
  std::uint32_t name_bytes = 0;
  std::uint32_t second_bytes = 0;
  std::uint32_t unused = 0;
  std::uint64_t inode = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t data_bytes = 0;
};

}  // namespace sluice::power
