#pragma once
// Reading and writing safetensors files (8-byte header length, JSON header, data), with bounded
// memory: nothing but the header is held. The format: https://github.com/huggingface/safetensors.
// No LibTorch.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sluice/base/dtype.hpp"
#include "sluice/base/fd.hpp"

namespace sluice::models {

struct TensorEntry {
  std::string name;
  DType dtype = DType::fp32;
  std::vector<std::int64_t> shape;
  std::uint64_t offset_bytes = 0;  // in the file
  std::uint64_t size_bytes = 0;
};

// Thread-compatible: callers synchronise.
class SafetensorsReader {
 public:
  // Throws IoError (absent, unreadable), StorageError (not a safetensors file, truncated, a header
  // whose ranges overlap or leave the file; a tensor of a data type other than F32, BF16, F16 is
  // listed in skipped()).
  explicit SafetensorsReader(const std::string& path);
  const std::string& path() const { return path_; }
  const std::map<std::string, TensorEntry>& tensors() const { return tensors_; }
  // Data types, as the file has them, of the tensors whose type is not a floating type known here.
  const std::map<std::string, std::string>& skipped() const { return skipped_; }
  // Elements [offset_count, offset_count + values.size()) of a tensor as fp32. Throws
  // InvalidArgument beyond its end.
  void read_fp32(const TensorEntry& tensor, std::uint64_t offset_count,
                 std::span<float> values) const;

 private:
  std::string path_;
  UniqueFd fd_;
  std::map<std::string, TensorEntry> tensors_;
  std::map<std::string, std::string> skipped_;  // name -> data type
};

struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> shape;
};

// Writes to a temporary file beside `path` and renames it in finish(): a failed export leaves
// nothing and does not touch what was there. Tensors are written in the given order, all of one
// data type. Thread-compatible: callers synchronise.
class SafetensorsWriter {
 public:
  // Throws InvalidArgument on a name given twice or a shape without elements, IoError when the file
  // cannot be made.
  SafetensorsWriter(std::string path, std::vector<TensorSpec> tensors, DType dtype);
  ~SafetensorsWriter();  // removes the temporary file when finish() was not reached
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // Puts elements [offset_count, ...) of tensor `index`, rounded to nearest even to the file's data
  // type. Any order. Throws InvalidArgument beyond the tensor's end, IoError.
  void write_fp32(std::size_t index, std::uint64_t offset_count, std::span<const float> values);
  // Writes the data through to the disk and makes the file appear under its name. Call once, last.
  // Throws InvalidArgument when an element was never written, IoError.
  void finish();

 private:
  void note_written(std::size_t index, std::uint64_t begin, std::uint64_t end);

  std::string path_;
  std::string temporary_path_;
  UniqueFd fd_;
  DType dtype_;
  std::vector<TensorSpec> tensors_;
  std::vector<std::uint64_t> counts_;         // elements of each tensor
  std::vector<std::uint64_t> offsets_bytes_;  // of each tensor, in the file
  // Elements written so far: begin -> end of disjoint ranges that do not touch.
  std::vector<std::map<std::uint64_t, std::uint64_t>> written_;
};

}  // namespace sluice::models
