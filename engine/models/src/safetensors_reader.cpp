#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>

#include "json_text.hpp"
#include "safetensors_format.hpp"
#include "sluice/models/safetensors.hpp"

namespace sluice::models {
namespace {

// Reads bytes.size() bytes at `offset_bytes`. Throws StorageError when the file ends before.
void read_exactly(int fd, const std::string& path, std::span<std::byte> bytes,
                  std::uint64_t offset_bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = SLUICE_SYSCALL(::pread(fd, bytes.data() + done, bytes.size() - done,
                                               static_cast<off_t>(offset_bytes + done)),
                                       path);
    if (got == 0) {
      throw StorageError(path, "ends at byte " + std::to_string(offset_bytes + done) +
                                   ", needed are " + std::to_string(offset_bytes + bytes.size()) +
                                   " bytes: the file was cut short");
    }
    done += static_cast<std::size_t>(got);
  }
}

// Bytes per element of the format's data types; empty for an unknown type.
std::optional<std::uint64_t> element_bytes_of(const std::string& dtype) {
  static constexpr std::array<std::pair<const char*, std::uint64_t>, 15> kTypes{{{"BOOL", 1},
                                                                                 {"U8", 1},
                                                                                 {"I8", 1},
                                                                                 {"F8_E5M2", 1},
                                                                                 {"F8_E4M3", 1},
                                                                                 {"I16", 2},
                                                                                 {"U16", 2},
                                                                                 {"F16", 2},
                                                                                 {"BF16", 2},
                                                                                 {"I32", 4},
                                                                                 {"U32", 4},
                                                                                 {"F32", 4},
                                                                                 {"F64", 8},
                                                                                 {"I64", 8},
                                                                                 {"U64", 8}}};
  for (const auto& [name, bytes] : kTypes) {
    if (dtype == name) return bytes;
  }
  return std::nullopt;
}

std::optional<DType> dtype_of(const std::string& dtype) {
  if (dtype == "F32") return DType::fp32;
  if (dtype == "BF16") return DType::bf16;
  if (dtype == "F16") return DType::fp16;
  return std::nullopt;
}

struct HeaderEntry {
  TensorEntry tensor;
  std::string dtype;  // the file's text
};

// Parses the JSON header into entries. Every error names the file and the tensor.
class HeaderReader {
 public:
  HeaderReader(const std::string& path, std::uint64_t data_begin_bytes, std::uint64_t data_bytes)
      : path_(path), data_begin_bytes_(data_begin_bytes), data_bytes_(data_bytes) {}

  std::vector<HeaderEntry> entries(const std::string& header) const {
    const Json::Value root = parse_json(path_, "the header", header);
    if (!root.isObject()) throw StorageError(path_, "the header is not a JSON object");
    std::vector<HeaderEntry> found;
    for (const std::string& name : root.getMemberNames()) {
      if (name != "__metadata__") found.push_back(entry(name, root[name]));
    }
    check_overlap(found);
    check_end(found);
    return found;
  }

 private:
  [[noreturn]] void fail(const std::string& name, const std::string& what) const {
    throw StorageError(path_, "tensor " + name + ": " + what);
  }

  HeaderEntry entry(const std::string& name, const Json::Value& value) const {
    if (!value.isObject()) fail(name, "is described by no JSON object");
    if (!value["dtype"].isString()) fail(name, "has no \"dtype\" text");
    HeaderEntry result;
    result.dtype = value["dtype"].asString();
    result.tensor.name = name;
    result.tensor.shape = shape_of(name, value["shape"]);
    read_offsets(value["data_offsets"], result.tensor);
    if (const auto element_bytes = element_bytes_of(result.dtype)) {
      check_size(result.tensor, *element_bytes, result.dtype);
    }
    return result;
  }

  std::vector<std::int64_t> shape_of(const std::string& name, const Json::Value& value) const {
    if (!value.isArray()) fail(name, "has no \"shape\" list");
    std::vector<std::int64_t> shape;
    for (const Json::Value& dimension : value) {
      if (!dimension.isInt64() || dimension.asInt64() < 0) {
        // Only a number is shown: a nested list, indented, would be far longer than the file.
        fail(name, "has a dimension that is no number from 0 on" +
                       (dimension.isNumeric() ? ": " + dimension.asString() : ""));
      }
      shape.push_back(dimension.asInt64());
    }
    return shape;
  }

  void read_offsets(const Json::Value& value, TensorEntry& tensor) const {
    if (!value.isArray() || value.size() != 2 || !value[0].isUInt64() || !value[1].isUInt64()) {
      fail(tensor.name, "has no \"data_offsets\" of two numbers from 0 on");
    }
    const std::uint64_t begin = value[0].asUInt64();
    const std::uint64_t end = value[1].asUInt64();
    if (begin > end || end > data_bytes_) {
      fail(tensor.name, "data_offsets " + std::to_string(begin) + " to " + std::to_string(end) +
                            " leave the file's " + std::to_string(data_bytes_) +
                            " bytes of data; the file is truncated or damaged");
    }
    tensor.offset_bytes = data_begin_bytes_ + begin;
    tensor.size_bytes = end - begin;
  }

  void check_size(const TensorEntry& tensor, std::uint64_t element_bytes,
                  const std::string& dtype) const {
    std::uint64_t needed = 0;
    try {
      needed = checked_mul(element_count(tensor.shape), element_bytes);
    } catch (const InvalidArgument& error) {
      fail(tensor.name, std::string("its shape is impossible: ") + error.what());
    }
    if (needed != tensor.size_bytes) {
      fail(tensor.name, "its shape needs " + std::to_string(needed) + " bytes of " + dtype +
                            ", its data_offsets hold " + std::to_string(tensor.size_bytes));
    }
  }

  void check_overlap(std::vector<HeaderEntry>& entries) const {
    const auto begin_of = [](const HeaderEntry& e) { return e.tensor.offset_bytes; };
    std::sort(entries.begin(), entries.end(), [&](const HeaderEntry& a, const HeaderEntry& b) {
      // An empty tensor may have the offset of the tensor that begins there.
      return std::pair(begin_of(a), a.tensor.size_bytes) <
             std::pair(begin_of(b), b.tensor.size_bytes);
    });
    for (std::size_t i = 1; i < entries.size(); ++i) {
      const TensorEntry& before = entries[i - 1].tensor;
      const TensorEntry& after = entries[i].tensor;
      if (before.offset_bytes + before.size_bytes > after.offset_bytes) {
        fail(after.name, "its data overlap those of " + before.name);
      }
    }
  }

  // The format leaves no byte to nobody. `entries`: sorted.
  void check_end(const std::vector<HeaderEntry>& entries) const {
    std::uint64_t end = data_begin_bytes_;
    if (!entries.empty())
      end = entries.back().tensor.offset_bytes + entries.back().tensor.size_bytes;
    const std::uint64_t rest = data_begin_bytes_ + data_bytes_ - end;
    if (rest > 0)
      throw StorageError(path_, std::to_string(rest) +
                                    " bytes behind the last tensor belong to none: the file is "
                                    "damaged, or not only a safetensors file");
  }

  const std::string& path_;
  const std::uint64_t data_begin_bytes_;
  const std::uint64_t data_bytes_;
};

// Reads the header's text. Throws StorageError when its length exceeds the file's or the limit.
std::string read_header(int fd, const std::string& path, std::uint64_t file_bytes) {
  if (file_bytes < kHeaderLengthBytes) {
    throw StorageError(path, "is no safetensors file: " + std::to_string(file_bytes) +
                                 " bytes are less than the length of a header");
  }
  std::uint64_t header_bytes = 0;
  read_exactly(fd, path, std::as_writable_bytes(std::span(&header_bytes, 1)), 0);
  if (header_bytes > kMaxHeaderBytes || header_bytes > file_bytes - kHeaderLengthBytes) {
    throw StorageError(path, "is no safetensors file, or truncated: it claims a header of " +
                                 std::to_string(header_bytes) + " bytes, and has " +
                                 std::to_string(file_bytes - kHeaderLengthBytes) +
                                 " after the length (at most " + std::to_string(kMaxHeaderBytes) +
                                 " are allowed)");
  }
  std::string header(header_bytes, '\0');
  read_exactly(fd, path, std::as_writable_bytes(std::span(header)), kHeaderLengthBytes);
  return header;
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::string& path)
    // O_NONBLOCK: opening a FIFO would otherwise wait for a writer.
    : path_(path),
      fd_(SLUICE_SYSCALL(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK), path)) {
  struct stat info {};
  SLUICE_SYSCALL(::fstat(fd_.get(), &info), path);
  if (!S_ISREG(info.st_mode)) throw StorageError(path, "is not a regular file");
  file_bytes_ = static_cast<std::uint64_t>(info.st_size);
  const std::string header = read_header(fd_.get(), path, file_bytes_);
  const std::uint64_t data_begin_bytes = kHeaderLengthBytes + header.size();
  const HeaderReader reader(path_, data_begin_bytes, file_bytes_ - data_begin_bytes);
  for (HeaderEntry& entry : reader.entries(header)) {
    if (const auto dtype = dtype_of(entry.dtype)) {
      entry.tensor.dtype = *dtype;
      tensors_.emplace(entry.tensor.name, std::move(entry.tensor));
    } else {
      skipped_.emplace(entry.tensor.name, std::move(entry.dtype));
    }
  }
}

void SafetensorsReader::read_fp32(const TensorEntry& tensor, std::uint64_t offset_count,
                                  std::span<float> values) const {
  const std::uint64_t element_bytes = size_of(tensor.dtype);
  const std::uint64_t count = tensor.size_bytes / element_bytes;
  check_elements(path_, tensor.name, count, offset_count, values.size());
  const std::uint64_t begin_bytes = tensor.offset_bytes + offset_count * element_bytes;
  if (tensor.dtype == DType::fp32) {
    read_exactly(fd_.get(), path_, std::as_writable_bytes(values), begin_bytes);
    return;
  }
  std::vector<std::uint16_t> bits(std::min(values.size(), kConvertCount));
  for (std::size_t done = 0; done < values.size(); done += bits.size()) {
    const std::span<std::uint16_t> part(bits.data(), std::min(bits.size(), values.size() - done));
    read_exactly(fd_.get(), path_, std::as_writable_bytes(part),
                 begin_bytes + done * element_bytes);
    for (std::size_t i = 0; i < part.size(); ++i) {
      values[done + i] =
          tensor.dtype == DType::bf16 ? to_fp32(Bf16{part[i]}) : to_fp32(Fp16{part[i]});
    }
  }
}

}  // namespace sluice::models
