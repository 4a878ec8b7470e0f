// The header of a safetensors file, and the index of several. A header begins with its length; so
// each input is also given the length that fits its JSON text.
#include "sluice/models/safetensors.hpp"

#include <cstring>
#include <vector>

#include "sluice/models/weight_reader.hpp"
#include "target.hpp"

namespace sluice::fuzz {
namespace {

void read_ends(const models::SafetensorsReader& reader, const models::TensorEntry& tensor) {
  const std::uint64_t count = tensor.size_bytes / size_of(tensor.dtype);
  std::vector<float> values(count == 0 ? 0 : 1);
  reader.read_fp32(tensor, 0, values);
  reader.read_fp32(tensor, count - values.size(), values);
}

void read_index(std::string_view bytes) {
  const std::string path = write_input("weights.safetensors.index.json", bytes);
  read_or_refuse([&] { const models::WeightReader reader(path); });
}

void read_file(std::string_view bytes) {
  const std::string path = write_input("weights.safetensors", bytes);
  read_or_refuse([&] {
    const models::SafetensorsReader reader(path);
    for (const auto& [name, tensor] : reader.tensors()) read_ends(reader, tensor);
  });
}

}  // namespace
}  // namespace sluice::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size_bytes) {
  using namespace sluice::fuzz;
  std::string bytes(text_of(data, size_bytes));
  read_file(bytes);
  read_index(bytes);
  constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);
  const std::size_t end = bytes.rfind('}');
  if (end == std::string::npos || end < kLengthBytes) return 0;
  const std::uint64_t header_bytes = end + 1 - kLengthBytes;
  std::memcpy(bytes.data(), &header_bytes, kLengthBytes);
  read_file(bytes);
  return 0;
}
