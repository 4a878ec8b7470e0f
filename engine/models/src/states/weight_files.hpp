#pragma once
// WeightFiles: tensors in one safetensors file, or in several with an index, as Hugging Face's
// libraries write and read them: model-00001-of-00003.safetensors and so on, and
// model.safetensors.index.json, which names the file of each tensor. Thread-compatible: callers
// synchronise.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sluice/base/dtype.hpp"
#include "sluice/models/safetensors.hpp"

namespace sluice::models {

class WeightFiles {
 public:
  // Allocates the files, of at most `most_bytes` of tensors each; a larger tensor has a file of its
  // own. `most_bytes` 0, or as much as all tensors have: one file, `out_path`. Throws as
  // SafetensorsWriter, and InvalidArgument, before anything is written, when a file that would be
  // replaced is a run's (offload::is_run_file) or holds something else than weights.
  WeightFiles(const std::string& out_path, const std::vector<TensorSpec>& tensors, DType dtype,
              std::uint64_t most_bytes);

  // As SafetensorsWriter::write_fp32; `index` counts over all files.
  void write_fp32(std::size_t index, std::uint64_t offset_count, std::span<const float> values);
  // Syncs all files, removes the index of an earlier export, gives the files their names, and
  // writes the index; then removes a file `out_path` of an earlier export, which programs would
  // read in place of the index. At no time does an index name files of two exports. Blocks. Throws
  // as SafetensorsWriter::finish().
  void finish();
  // The weight files, without the index.
  const std::vector<std::string>& paths() const { return paths_; }

 private:
  struct Place {
    std::size_t file = 0;
    std::size_t index = 0;  // in the file
  };
  std::string index_text() const;
  std::string index_path() const;

  const std::string out_path_;
  std::vector<std::string> names_;  // of the tensors
  std::vector<Place> places_;       // of the tensors
  std::uint64_t tensor_bytes_ = 0;  // of all
  std::vector<std::string> paths_;
  std::vector<std::unique_ptr<SafetensorsWriter>> writers_;
};

}  // namespace sluice::models
