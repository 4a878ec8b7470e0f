#include "states/weight_files.hpp"

#include <json/json.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <optional>

#include "safetensors_format.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/file/paths.hpp"
#include "sluice/base/json/json_reader.hpp"
#include "sluice/base/written.hpp"
#include "sluice/offload/swap_directory.hpp"

namespace sluice::models {

namespace {

namespace fs = std::filesystem;

std::uint64_t bytes_of(const TensorSpec& tensor, DType dtype) {
  return checked_mul(element_count(tensor.shape), size_of(dtype));
}

// model.safetensors as model-00001-of-00003.safetensors; `file` counts from 0.
std::string shard_path(const std::string& out_path, std::size_t file, std::size_t files) {
  const fs::path path(out_path);
  char number[40];
  std::snprintf(number, sizeof number, "-%05zu-of-%05zu", file + 1, files);
  return (path.parent_path() / (path.stem().string() + number + path.extension().string()))
      .string();
}

// Whether a file may be replaced as one of weights: an empty file counts, and one of another
// program. Throws InvalidArgument when it cannot be read.
bool is_of_weights(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  const int error_number = errno;
  SLUICE_CHECK(file || error_number == ENOENT, path + ": cannot be read (" +
                                                   std::strerror(error_number) +
                                                   "), and would be replaced; give another name");
  std::uint64_t header_bytes = 0;
  char begin = 0;
  file.read(reinterpret_cast<char*>(&header_bytes), kHeaderLengthBytes);
  file.get(begin);
  std::error_code gone;
  const std::uintmax_t size_bytes = fs::file_size(path, gone);
  if (gone || size_bytes == 0) return true;
  return file && begin == '{' && header_bytes <= size_bytes - kHeaderLengthBytes;
}

void check_is_no_runs(const std::string& path) {
  SLUICE_CHECK(
      !offload::is_run_file(path),
      path + ": is part of a training run, and would be replaced; write the weights elsewhere");
}

// Throws InvalidArgument when the file is a run's, or holds something else than weights.
void check_replaceable(const std::string& path) {
  check_is_no_runs(path);
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return;
  SLUICE_CHECK(
      is_of_weights(path),
      path + ": holds something else than weights, and would be replaced; give another name");
}

// Throws InvalidArgument unless the file may be replaced as an index: there is none, it is empty,
// or it is an index, perhaps of another program.
void check_is_index(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error) && !error) return;
  std::string text;
  try {
    text = read_regular_file(path, kMaxHeaderBytes);
  } catch (const std::exception& why) {
    throw InvalidArgument(std::string(why.what()) +
                          "; it would be replaced as the index: give another name");
  }
  const std::optional<Json::Value> index = JsonReader().read(text);
  SLUICE_CHECK(text.empty() || (index && index->isObject() && (*index)["weight_map"].isObject()),
               path +
                   ": holds something else than an index of weights, and would be replaced; give "
                   "another name");
}

}  // namespace

WeightFiles::WeightFiles(const std::string& out_path, const std::vector<TensorSpec>& tensors,
                         DType dtype, std::uint64_t most_bytes)
    : out_path_(out_path) {
  std::vector<std::vector<TensorSpec>> files(1);
  std::uint64_t file_bytes = 0;
  for (const TensorSpec& tensor : tensors) {
    const std::uint64_t bytes = bytes_of(tensor, dtype);
    if (most_bytes > 0 && file_bytes > 0 && checked_add(file_bytes, bytes) > most_bytes) {
      files.emplace_back();
      file_bytes = 0;
    }
    file_bytes = checked_add(file_bytes, bytes);
    tensor_bytes_ = checked_add(tensor_bytes_, bytes);
    names_.push_back(tensor.name);
    places_.push_back({files.size() - 1, files.back().size()});
    files.back().push_back(tensor);
  }
  for (std::size_t file = 0; file < files.size(); ++file)
    paths_.push_back(files.size() == 1 ? out_path : shard_path(out_path, file, files.size()));
  // All of them before the first is made. Several files replace `out_path` too.
  check_replaceable(out_path);
  for (const std::string& path : paths_) check_replaceable(path);
  check_is_no_runs(index_path());
  if (files.size() > 1) check_is_index(index_path());
  for (std::size_t file = 0; file < files.size(); ++file)
    writers_.push_back(
        std::make_unique<SafetensorsWriter>(paths_[file], std::move(files[file]), dtype));
}

void WeightFiles::write_fp32(std::size_t index, std::uint64_t offset_count,
                             std::span<const float> values) {
  const Place place = places_.at(index);
  writers_[place.file]->write_fp32(place.index, offset_count, values);
}

std::string WeightFiles::index_text() const {
  Json::Value root(Json::objectValue);
  root["metadata"]["total_size"] = Json::UInt64(tensor_bytes_);
  for (std::size_t i = 0; i < names_.size(); ++i)
    root["weight_map"][names_[i]] = fs::path(paths_[places_[i].file]).filename().string();
  Json::StreamWriterBuilder writer;
  writer["indentation"] = "  ";
  return Json::writeString(writer, root) + "\n";
}

std::string WeightFiles::index_path() const {
  return out_path_ + ".index.json";
}

void WeightFiles::finish() {
  // All data are on the disk before the first name changes, so that the renames take no time.
  for (const auto& writer : writers_) writer->sync();
  // An earlier export has these names too. Killed between two renames, this one leaves new and old
  // files, and no index may name them.
  if (writers_.size() > 1) remove_file(index_path());
  for (const auto& writer : writers_) writer->finish();
  if (writers_.size() == 1) return;
  replace_file(
      index_path(), index_text(),
      {.draft = index_path() + ".partial-" + std::to_string(::getpid()), .sync = FileSync::fsync});
  remove_file(out_path_);
}

}  // namespace sluice::models
