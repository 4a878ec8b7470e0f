#pragma once
// EventFile: a TensorBoard event file of scalars. Format: tensorflow/core/lib/io/record_writer.cc
// (records with masked CRC-32C) and tensorflow/core/util/event.proto.

#include <cstdint>
#include <string>
#include <vector>

#include "record/append_file.hpp"

namespace sluice::train {

struct Scalar {
  std::string tag;   // "Train/Samples/lr"
  double value = 0;  // written as fp32
};

// Confined to the thread that trains.
class EventFile {
 public:
  // Makes a new file in the directory, which sorts behind those that are there: TensorBoard reads
  // in this order. It begins with a session that starts at `first_step`, so readers drop what
  // earlier files have from this step on. Throws IoError.
  EventFile(const std::string& directory, std::int64_t first_step);

  // Appends one event for each scalar, as AppendFile::append.
  void append(const std::vector<Scalar>& scalars, std::int64_t step);

  // As AppendFile::finish.
  void finish() { file_.finish(); }

  const std::string& path() const { return file_.path(); }

 private:
  AppendFile file_;
};

// CRC-32C (Castagnoli), as RFC 3720 has it: "123456789" gives 0xe3069283.
std::uint32_t crc32c(const std::string& bytes);

}  // namespace sluice::train
