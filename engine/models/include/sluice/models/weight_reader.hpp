#pragma once
// WeightReader: the tensors of one safetensors file, or of several with an index, as Hugging Face's
// libraries and `sluice export` write them. It holds only the headers in memory. No LibTorch.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "sluice/models/safetensors.hpp"

namespace sluice::models {

// Whether `path` is a directory with model.safetensors or model.safetensors.index.json.
bool is_weight_folder(const std::string& path);

// Owns the open files. Thread-compatible: callers synchronise; any number of threads may use a
// const reader.
class WeightReader {
 public:
  struct Tensor {
    TensorEntry entry;
    std::size_t file = 0;  // of the reader's files
  };

  // `path`: a safetensors file, an index (*.index.json), whose files lie beside it, or a directory
  // as in is_weight_folder(), where model.safetensors comes first. With an index, only tensors that
  // it names are read, each from the file that it names.
  // Throws as SafetensorsReader for each file. Throws StorageError when the index is not valid,
  // names a file outside its directory, or a file lacks a tensor of the index; InvalidArgument for
  // a directory without weights.
  explicit WeightReader(const std::string& path);

  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  // As SafetensorsReader::skipped(), of all files.
  const std::map<std::string, std::string>& skipped() const { return skipped_; }
  const std::string& path_of(const Tensor& tensor) const { return files_[tensor.file].path(); }
  std::uint64_t file_bytes() const;  // of all safetensors files, with their headers
  // As SafetensorsReader::read_fp32.
  void read_fp32(const Tensor& tensor, std::uint64_t offset_count, std::span<float> values) const;

 private:
  void add_file(const std::string& path, const std::vector<std::string>& names);

  std::vector<SafetensorsReader> files_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> skipped_;  // name -> data type
};

}  // namespace sluice::models
