#pragma once
// Possible contents of a file system after loss of power, from a record of the changes to a folder
// (recorder.cpp). Synced bytes and names are there; of all others, any part may be.
//
//   data    fsync and fdatasync of a file make its bytes and its length durable. Any 512-byte
//           sectors of later writes may have arrived, in any order, and the length may be that
//           after any of them.
//   names   fsync of a folder makes its names durable; a rename happens as a whole or not at all.
//           Names says which later changes of names may have happened. The sync of a file does not
//           make its name durable, and that of a folder not its own name in its parent.
//
// Confined to one thread.

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "record_format.hpp"

namespace sluice::power {

struct Entry {
  Op op = Op::mark;
  std::string name;
  std::string second;
  std::uint64_t inode = 0;
  std::uint64_t offset_bytes = 0;
  std::string data;
};

std::vector<Entry> read_record(const std::string& path);

// A moment at which power is lost, as a number of entries of which the first `made` are past: in
// half of the cases close to where names change or something is synced.
std::size_t moment(const std::vector<Entry>& record, std::size_t made, std::mt19937_64& random);

// How many moments a test tries: SLUICE_POWER_CUTS, or as many as CI has the time for.
std::size_t cut_count();

// in_order: those of one folder as far as some moment, as in a journal. any: each of them or not.
enum class Names { in_order, any };

class LostPower {
 public:
  // The folder after the first `count` entries, and before the next.
  LostPower(const std::vector<Entry>& record, std::size_t count);

  // Makes one of the legal states below `folder`, which must be there and empty.
  void write_state(const std::string& folder, Names names, std::mt19937_64& random) const;
  // The texts that the process had said by then, one after the other.
  const std::string& said() const { return said_; }

 private:
  struct Change {  // of a file's bytes or length
    Op op = Op::write;
    std::uint64_t offset_bytes = 0;
    const std::string* data = nullptr;
  };
  struct Node {
    bool is_folder = false;
    std::string durable;  // a file's bytes
    std::vector<Change> pending;
    std::map<std::string, std::size_t> names;  // a folder's: of nodes, durable
  };
  // A change of names. Without a target: removed.
  struct NameChange {
    Op op = Op::create;
    std::size_t folder = 0;
    std::string name;
    std::size_t node = 0;           // create, make_folder
    std::size_t second_folder = 0;  // rename
    std::string second;
  };
  using Folders = std::vector<std::map<std::string, std::size_t>>;

  void take(const Entry& entry);
  void take_names(const Entry& entry);
  void sync_folder(std::size_t folder);
  static void apply(const NameChange& change, Folders& folders);
  std::size_t folder_at(const std::string& path) const;
  std::size_t node_of(std::uint64_t inode) const;
  std::string bytes_of(const Node& node, std::mt19937_64& random) const;
  Folders names_after(Names names, std::mt19937_64& random) const;
  void write_folder(const std::string& path, std::size_t folder, const Folders& folders,
                    std::mt19937_64& random) const;

  std::vector<Node> nodes_;  // nodes_[0] is the root
  Folders live_;             // names of each folder as the process sees them, by node
  std::map<std::uint64_t, std::size_t> node_of_inode_;
  std::vector<NameChange> pending_names_;
  std::string said_;
};

}  // namespace sluice::power
