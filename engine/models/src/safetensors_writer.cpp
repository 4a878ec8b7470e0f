#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <set>

#include "safetensors_format.hpp"
#include "sluice/base/fd.hpp"
#include "sluice/base/file/paths.hpp"
#include "sluice/base/json/json_writer.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/written.hpp"
#include "sluice/models/safetensors.hpp"

namespace sluice::models {
namespace {

const char* format_name_of(DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::fp16:
      return "F16";
  }
  return "?";
}

// The JSON header, padded with spaces so that the data start at a multiple of 8, as the format's
// own writer does. `begins_bytes` count from the beginning of the data.
std::string make_header(const std::vector<TensorSpec>& tensors,
                        const std::vector<std::uint64_t>& counts,
                        const std::vector<std::uint64_t>& begins_bytes, DType dtype) {
  Json::Value root(Json::objectValue);
  root["__metadata__"]["format"] = "pt";
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    Json::Value& entry = root[tensors[i].name];
    entry["dtype"] = format_name_of(dtype);
    entry["shape"] = Json::Value(Json::arrayValue);
    for (const std::int64_t dimension : tensors[i].shape) {
      entry["shape"].append(Json::Value::Int64{dimension});
    }
    entry["data_offsets"].append(Json::Value::UInt64{begins_bytes[i]});
    entry["data_offsets"].append(Json::Value::UInt64{begins_bytes[i] + counts[i] * size_of(dtype)});
  }
  std::string header = json_line(root);
  header.resize(align_up(header.size(), kHeaderLengthBytes), ' ');
  return header;
}

// Allocates all blocks, so that a full disk fails before the work.
void allocate_file(int fd, const std::string& path, std::uint64_t size_bytes) {
  const int error = ::posix_fallocate(fd, 0, static_cast<off_t>(size_bytes));
  if (error != 0) {
    throw IoError(error, "allocate", path, 0, size_bytes, "free space on that file system");
  }
}

// The file that finish() replaces: the target of a symbolic link, not the link. Throws
// InvalidArgument when the target exists and is not a regular file: renaming over a device would
// remove the device.
std::string replaced_file(const std::string& path) {
  std::error_code error;
  std::string target = file_behind_links(path);
  const auto status = std::filesystem::status(target, error);
  SLUICE_CHECK(
      !std::filesystem::exists(status) || std::filesystem::is_regular_file(status),
      path + ": is not a regular file, so it cannot be replaced by one; give another name");
  return target;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<TensorSpec> tensors,
                                     DType dtype)
    : path_(replaced_file(path)),
      temporary_path_(path_ + ".partial-" + std::to_string(::getpid())),
      dtype_(dtype),
      tensors_(std::move(tensors)),
      written_(tensors_.size()) {
  std::set<std::string> names{"__metadata__"};
  std::uint64_t data_bytes = 0;
  for (const TensorSpec& tensor : tensors_) {
    SLUICE_CHECK(names.insert(tensor.name).second,
                 path_ + ": tensor " + tensor.name + " is given twice, or its name is reserved");
    counts_.push_back(element_count(tensor.shape));
    SLUICE_CHECK(counts_.back() > 0, path_ + ": tensor " + tensor.name + " has no elements");
    offsets_bytes_.push_back(data_bytes);
    data_bytes = checked_add(data_bytes, checked_mul(counts_.back(), size_of(dtype)));
  }
  const std::string header = make_header(tensors_, counts_, offsets_bytes_, dtype);
  SLUICE_CHECK(header.size() <= kMaxHeaderBytes, path_ + ": too many tensors for one file");
  const std::uint64_t header_bytes = header.size();
  for (std::uint64_t& offset : offsets_bytes_) offset += kHeaderLengthBytes + header_bytes;

  fd_ = UniqueFd(::open(temporary_path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd_)
    throw IoError(errno, "open", path_, 0, 0,
                  errno == ENOENT ? "its folder does not exist; create it first" : "");
  try {
    allocate_file(fd_.get(), path_, kHeaderLengthBytes + header_bytes + data_bytes);
    write_all_at(fd_.get(), std::as_bytes(std::span(&header_bytes, 1)), 0, path_);
    write_all_at(fd_.get(), std::as_bytes(std::span(header)), kHeaderLengthBytes, path_);
  } catch (...) {
    // The destructor does not run after a throw in the constructor.
    ::unlink(temporary_path_.c_str());
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ && ::unlink(temporary_path_.c_str()) != 0) {
    log(LogLevel::warn, "the unfinished file " + temporary_path_ + " could not be removed");
  }
}

void SafetensorsWriter::write_fp32(std::size_t index, std::uint64_t offset_count,
                                   std::span<const float> values) {
  SLUICE_CHECK(fd_, path_ + ": already finished");
  SLUICE_CHECK(index < tensors_.size(), path_ + ": tensor " + std::to_string(index) + " of " +
                                            std::to_string(tensors_.size()));
  check_elements(path_, tensors_[index].name, counts_[index], offset_count, values.size());
  if (values.empty()) return;
  synced_ = false;
  const std::uint64_t begin_bytes = offsets_bytes_[index] + offset_count * size_of(dtype_);
  if (dtype_ == DType::fp32) {
    write_all_at(fd_.get(), std::as_bytes(values), begin_bytes, path_);
  } else {
    std::vector<std::uint16_t> bits(std::min(values.size(), kConvertCount));
    for (std::size_t done = 0; done < values.size(); done += bits.size()) {
      const std::size_t part = std::min(bits.size(), values.size() - done);
      for (std::size_t i = 0; i < part; ++i) {
        const float value = values[done + i];
        bits[i] = dtype_ == DType::bf16 ? to_bf16(value).bits : to_fp16(value).bits;
      }
      write_all_at(fd_.get(), std::as_bytes(std::span(bits.data(), part)),
                   begin_bytes + done * sizeof(std::uint16_t), path_);
    }
  }
  note_written(index, offset_count, offset_count + values.size());
}

void SafetensorsWriter::note_written(std::size_t index, std::uint64_t begin, std::uint64_t end) {
  auto& ranges = written_[index];
  // Merges every range that overlaps or touches [begin, end).
  auto next = ranges.upper_bound(begin);
  if (next != ranges.begin() && std::prev(next)->second >= begin) --next;
  while (next != ranges.end() && next->first <= end) {
    begin = std::min(begin, next->first);
    end = std::max(end, next->second);
    next = ranges.erase(next);
  }
  ranges.emplace(begin, end);
}

void SafetensorsWriter::sync() {
  SLUICE_CHECK(fd_, path_ + ": already finished");
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto& ranges = written_[i];
    const bool complete =
        ranges.size() == 1 && ranges.begin()->first == 0 && ranges.begin()->second == counts_[i];
    SLUICE_CHECK(complete, path_ + ": tensor " + tensors_[i].name +
                               " was not written completely; the file is not made");
  }
  SLUICE_SYSCALL(::fdatasync(fd_.get()), path_);
  synced_ = true;
}

void SafetensorsWriter::finish() {
  if (!synced_) sync();
  SLUICE_CHECK(fd_, path_ + ": already finished");
  check_written(fd_.get(), path_);
  SLUICE_SYSCALL(::rename(temporary_path_.c_str(), path_.c_str()), path_);
  fd_.reset();
}

}  // namespace sluice::models
