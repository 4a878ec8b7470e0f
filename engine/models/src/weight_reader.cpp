#include "sluice/models/weight_reader.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "json_text.hpp"
#include "safetensors_format.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/file/paths.hpp"

namespace sluice::models {

namespace {

namespace fs = std::filesystem;

constexpr const char* kFileName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

std::string in_folder(const std::string& folder, const char* name) {
  return (fs::path(folder) / name).string();
}

bool exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

bool is_folder(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

std::string found_in(const std::string& path) {
  if (!is_folder(path)) return path;
  for (const char* name : {kFileName, kIndexName})
    if (exists(in_folder(path, name))) return in_folder(path, name);
  throw InvalidArgument(path + ": holds neither " + kFileName + " nor " + kIndexName);
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

// The tensors of each file.
std::map<std::string, std::vector<std::string>> files_of_index(const std::string& path) {
  // An index has a line for each tensor: it is far smaller than a header may be.
  const Json::Value root = parse_json(path, "the index", read_regular_file(path, kMaxHeaderBytes));
  if (!root.isObject() || !root["weight_map"].isObject())
    throw StorageError(path, "is no index of weights: it has no object \"weight_map\"");
  std::map<std::string, std::vector<std::string>> files;
  for (const std::string& name : root["weight_map"].getMemberNames()) {
    const Json::Value& file = root["weight_map"][name];
    if (!file.isString() || !is_plain_name(file.asString()))
      throw StorageError(path,
                         "tensor " + name + ": \"weight_map\" names no file of its directory");
    files[file.asString()].push_back(name);
  }
  return files;
}

}  // namespace

bool is_weight_folder(const std::string& path) {
  return is_folder(path) &&
         (exists(in_folder(path, kFileName)) || exists(in_folder(path, kIndexName)));
}

WeightReader::WeightReader(const std::string& path) {
  const std::string found = found_in(path);
  if (!found.ends_with(".index.json")) {
    add_file(found, {});
    return;
  }
  for (const auto& [name, tensors] : files_of_index(found)) {
    const std::string file = (fs::path(found).parent_path() / name).string();
    if (!exists(file))
      throw StorageError(found, "names the file " + name + ", which is not beside it");
    add_file(file, tensors);
  }
}

// `names`: what the index expects of the file; empty without an index: all that is there.
void WeightReader::add_file(const std::string& path, const std::vector<std::string>& names) {
  const std::size_t file = files_.size();
  const SafetensorsReader& reader = files_.emplace_back(path);
  if (names.empty()) {
    for (const auto& [name, entry] : reader.tensors()) tensors_.emplace(name, Tensor{entry, file});
    skipped_ = reader.skipped();
    return;
  }
  for (const std::string& name : names) {
    const auto tensor = reader.tensors().find(name);
    const auto skipped = reader.skipped().find(name);
    if (tensor != reader.tensors().end()) {
      tensors_.emplace(name, Tensor{tensor->second, file});
    } else if (skipped != reader.skipped().end()) {
      skipped_.insert(*skipped);
    } else {
      throw StorageError(path, "has no tensor " + name + ", which the index expects here");
    }
  }
}

std::uint64_t WeightReader::file_bytes() const {
  std::uint64_t bytes = 0;
  for (const SafetensorsReader& file : files_) bytes += file.file_bytes();
  return bytes;
}

void WeightReader::read_fp32(const Tensor& tensor, std::uint64_t offset_count,
                             std::span<float> values) const {
  files_[tensor.file].read_fp32(tensor.entry, offset_count, values);
}

}  // namespace sluice::models
