#include "power_loss.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace sluice::power {
namespace {

constexpr std::uint64_t kSectorBytes = 512;

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

std::string last_of(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

std::size_t below(std::mt19937_64& random, std::size_t count) {
  return static_cast<std::size_t>(random() % count);
}

// Which unsynced sectors of a file arrive: none, all, or some with one chance for the whole file.
class Arrival {
 public:
  explicit Arrival(std::mt19937_64& random) : random_(random) {
    const std::size_t kind = below(random, 4);
    per_mille_ = kind == 0 ? 0 : kind == 1 ? 1000 : below(random, 1001);
  }
  bool operator()() { return below(random_, 1000) < per_mille_; }

 private:
  std::mt19937_64& random_;
  std::size_t per_mille_ = 0;
};

void overwrite(std::string& bytes, std::uint64_t offset_bytes, std::string_view data) {
  if (offset_bytes >= bytes.size()) return;
  const std::size_t size = std::min<std::size_t>(data.size(), bytes.size() - offset_bytes);
  std::memcpy(bytes.data() + offset_bytes, data.data(), size);
}

void write_arrived(std::string& bytes, std::uint64_t offset_bytes, std::string_view data,
                   Arrival& arrives) {
  while (!data.empty()) {
    const std::uint64_t to_end = kSectorBytes - offset_bytes % kSectorBytes;
    const std::string_view sector = data.substr(0, to_end);
    if (arrives()) overwrite(bytes, offset_bytes, sector);
    offset_bytes += sector.size();
    data.remove_prefix(sector.size());
  }
}

}  // namespace

std::vector<Entry> read_record(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<Entry> entries;
  const auto text = [&](std::uint64_t size_bytes) {
    std::string bytes(static_cast<std::size_t>(size_bytes), '\0');
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return bytes;
  };
  EntryHeader header;
  while (file.read(reinterpret_cast<char*>(&header), sizeof(header))) {
    Entry entry{header.op,    text(header.name_bytes), text(header.second_bytes),
                header.inode, header.offset_bytes,     text(header.data_bytes)};
    if (!file) throw std::runtime_error(path + " ends within an entry");
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::size_t moment(const std::vector<Entry>& record, std::size_t made, std::mt19937_64& random) {
  std::vector<std::size_t> turns;
  for (std::size_t i = made; i < record.size(); ++i) {
    if (record[i].op != Op::write && record[i].op != Op::mark) turns.push_back(i);
  }
  if (below(random, 2) == 0) return made + below(random, record.size() - made + 1);
  return std::min(record.size(), turns[below(random, turns.size())] + below(random, 3));
}

std::size_t cut_count() {
  const char* const asked = std::getenv("SLUICE_POWER_CUTS");
  return asked == nullptr ? 30 : static_cast<std::size_t>(std::atol(asked));
}

LostPower::LostPower(const std::vector<Entry>& record, std::size_t count) {
  nodes_.push_back({.is_folder = true, .durable = {}, .pending = {}, .names = {}});
  live_.emplace_back();
  for (std::size_t i = 0; i < count; ++i) take(record.at(i));
}

std::size_t LostPower::folder_at(const std::string& path) const {
  if (path == ".") return 0;
  return live_.at(folder_at(parent_of(path))).at(last_of(path));
}

std::size_t LostPower::node_of(std::uint64_t inode) const {
  const auto found = node_of_inode_.find(inode);
  return found == node_of_inode_.end()
             ? 0
             : found->second;  // 0: the root, whose making is not recorded
}

void LostPower::take(const Entry& entry) {
  switch (entry.op) {
    case Op::mark:
      said_ += entry.data;
      return;
    case Op::write:
    case Op::resize:
    case Op::allocate:
      nodes_[node_of(entry.inode)].pending.push_back({entry.op, entry.offset_bytes, &entry.data});
      return;
    case Op::sync_file: {
      Node& node = nodes_[node_of(entry.inode)];
      for (const Change& change : node.pending) {
        const std::uint64_t end =
            change.offset_bytes + (change.op == Op::write ? change.data->size() : 0);
        if (change.op == Op::resize || end > node.durable.size()) node.durable.resize(end);
        if (change.op == Op::write) overwrite(node.durable, change.offset_bytes, *change.data);
      }
      node.pending.clear();
      return;
    }
    case Op::sync_folder:
      return sync_folder(node_of(entry.inode));
    case Op::create:
    case Op::make_folder:
    case Op::rename:
    case Op::unlink:
      return take_names(entry);
  }
}

void LostPower::take_names(const Entry& entry) {
  NameChange change{entry.op, folder_at(parent_of(entry.name)), last_of(entry.name), 0, 0, ""};
  if (entry.op == Op::create || entry.op == Op::make_folder) {
    change.node = nodes_.size();
    nodes_.push_back(
        {.is_folder = entry.op == Op::make_folder, .durable = {}, .pending = {}, .names = {}});
    live_.emplace_back();
    node_of_inode_[entry.inode] = change.node;
  }
  if (entry.op == Op::rename) {
    change.second_folder = folder_at(parent_of(entry.second));
    change.second = last_of(entry.second);
  }
  apply(change, live_);
  pending_names_.push_back(std::move(change));
}

// A change whose name is not there, because that was lost, does nothing.
void LostPower::apply(const NameChange& change, Folders& folders) {
  auto& names = folders[change.folder];
  if (change.op == Op::create || change.op == Op::make_folder) {
    names[change.name] = change.node;
    return;
  }
  const auto found = names.find(change.name);
  if (found == names.end()) return;
  const std::size_t node = found->second;
  names.erase(found);
  if (change.op == Op::rename) folders[change.second_folder][change.second] = node;
}

void LostPower::sync_folder(std::size_t folder) {
  Folders durable;
  for (const Node& node : nodes_) durable.push_back(node.names);
  std::vector<NameChange> rest;
  for (NameChange& change : pending_names_) {
    const bool concerns =
        change.folder == folder || (change.op == Op::rename && change.second_folder == folder);
    if (concerns) {
      apply(change, durable);
    } else {
      rest.push_back(std::move(change));
    }
  }
  pending_names_ = std::move(rest);
  for (std::size_t i = 0; i < nodes_.size(); ++i) nodes_[i].names = std::move(durable[i]);
}

LostPower::Folders LostPower::names_after(Names names, std::mt19937_64& random) const {
  Folders folders;
  for (const Node& node : nodes_) folders.push_back(node.names);
  // in_order: how many of each folder's changes have happened.
  std::map<std::size_t, std::size_t> pending;
  for (const NameChange& change : pending_names_) ++pending[change.folder];
  std::map<std::size_t, std::size_t> happened;
  for (const auto& [folder, count] : pending) happened[folder] = below(random, count + 1);
  Arrival any(random);
  for (const NameChange& change : pending_names_) {
    if (names == Names::any ? any() : happened[change.folder]-- > 0) {
      apply(change, folders);
    } else {
      happened[change.folder] = 0;
    }
  }
  return folders;
}

std::string LostPower::bytes_of(const Node& node, std::mt19937_64& random) const {
  std::string bytes = node.durable;
  Arrival arrives(random);
  const std::size_t lengths =
      below(random, node.pending.size() + 1);  // changes of the length that happened
  for (std::size_t i = 0; i < node.pending.size(); ++i) {
    const Change& change = node.pending[i];
    const std::uint64_t end =
        change.offset_bytes + (change.op == Op::write ? change.data->size() : 0);
    if (i < lengths && (change.op == Op::resize || end > bytes.size())) bytes.resize(end);
    if (change.op == Op::write) write_arrived(bytes, change.offset_bytes, *change.data, arrives);
  }
  return bytes;
}

void LostPower::write_folder(const std::string& path, std::size_t folder, const Folders& folders,
                             std::mt19937_64& random) const {
  for (const auto& [name, index] : folders[folder]) {
    const std::string inside = path + "/" + name;
    const Node& node = nodes_[index];
    if (node.is_folder) {
      std::filesystem::create_directory(inside);
      write_folder(inside, index, folders, random);
    } else {
      std::ofstream(inside, std::ios::binary) << bytes_of(node, random);
    }
  }
}

void LostPower::write_state(const std::string& folder, Names names, std::mt19937_64& random) const {
  write_folder(folder, 0, names_after(names, random), random);
}

}  // namespace sluice::power
