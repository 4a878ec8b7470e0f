#pragma once
// Readers and writers of safetensors files (8-byte header length, JSON header, data) that hold only
// the header in memory. Format: https://github.com/huggingface/safetensors. No LibTorch.

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

// Owns the open file. Thread-compatible: callers synchronise; any number of threads may use a const
// reader.
class SafetensorsReader {
 public:
  // Reads the header. Tensors of data types other than F32, BF16 and F16 go to skipped(). Throws
  // IoError when the file is absent or unreadable. Throws StorageError when it is not a safetensors
  // file, is truncated, its header's ranges overlap or leave the file, or bytes follow the last
  // one.
  explicit SafetensorsReader(const std::string& path);
  const std::string& path() const { return path_; }
  std::uint64_t file_bytes() const { return file_bytes_; }  // with the header
  const std::map<std::string, TensorEntry>& tensors() const { return tensors_; }
  // Tensors of unsupported data types: name to the file's data type.
  const std::map<std::string, std::string>& skipped() const { return skipped_; }
  // Reads elements [offset_count, offset_count + values.size()) of a tensor as fp32. Blocks. Throws
  // InvalidArgument beyond the tensor's end, StorageError when the file was truncated, IoError.
  void read_fp32(const TensorEntry& tensor, std::uint64_t offset_count,
                 std::span<float> values) const;

 private:
  std::string path_;
  UniqueFd fd_;
  std::uint64_t file_bytes_ = 0;
  std::map<std::string, TensorEntry> tensors_;
  std::map<std::string, std::string> skipped_;  // name -> data type
};

struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> shape;
};

// Writes a safetensors file. The data go to a temporary file beside `path`, which finish() renames:
// a failure leaves no file and keeps an earlier one. Tensors lie in the given order, all of one
// data type. Thread-compatible: callers synchronise.
class SafetensorsWriter {
 public:
  // Allocates the file. Throws InvalidArgument for a name given twice, a shape without elements, or
  // a `path` that exists and is not a regular file. Throws IoError when the file cannot be created
  // or the disk is full.
  SafetensorsWriter(const std::string& path, std::vector<TensorSpec> tensors, DType dtype);
  ~SafetensorsWriter();  // removes the temporary file unless finish() succeeded
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // Writes `values` as the elements from offset_count on of tensor `index`, rounded to nearest even
  // to the file's data type. Calls may come in any order. Blocks. Throws InvalidArgument beyond the
  // tensor's end or after finish(), IoError.
  void write_fp32(std::size_t index, std::uint64_t offset_count, std::span<const float> values);
  // Syncs the data to the disk; the file has no name yet. Call it after all writes. Blocks. Throws
  // InvalidArgument when an element was never written, IoError.
  void sync();
  // Gives the file its name, after a sync(). Call once, last. Blocks. Throws as sync().
  void finish();

 private:
  void note_written(std::size_t index, std::uint64_t begin, std::uint64_t end);

  std::string path_;
  std::string temporary_path_;
  UniqueFd fd_;
  bool synced_ = false;  // nothing was written after the last sync()
  DType dtype_;
  std::vector<TensorSpec> tensors_;
  std::vector<std::uint64_t> counts_;         // elements of each tensor
  std::vector<std::uint64_t> offsets_bytes_;  // offset of each tensor in the file
  // For each tensor, the written elements: begin to end of disjoint ranges that do not touch.
  std::vector<std::map<std::uint64_t, std::uint64_t>> written_;
};

}  // namespace sluice::models
