#include "sluice/offload/tiered_bytes.hpp"

#include <string>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/offload/device.hpp"

namespace sluice::offload {

FileRange FileRange::part(std::uint64_t part_offset_bytes, std::uint64_t part_size_bytes) const {
  SLUICE_CHECK(part_offset_bytes <= size_bytes && part_size_bytes <= size_bytes - part_offset_bytes,
               std::to_string(part_size_bytes) + " bytes at offset " +
                   std::to_string(part_offset_bytes) + " are not inside a file range of " +
                   std::to_string(size_bytes) + " bytes");
  return FileRange{file, offset_bytes + part_offset_bytes, part_size_bytes};
}

TieredBytes::TieredBytes(Tier tier, Buffer buffer)
    : tier_(tier), size_bytes_(buffer.size_bytes()), buffer_(std::move(buffer)) {
  SLUICE_CHECK(tier != Tier::nvme, "bytes on tier nvme are a file range, not a buffer");
  SLUICE_CHECK(!buffer_ || tier == buffer_.tier(),
               "a buffer on tier " + std::string(name_of(buffer_.tier())) + " is no home on tier " +
                   std::string(name_of(tier)));
}

TieredBytes::TieredBytes(Tier tier, std::span<std::byte> borrowed)
    : tier_(tier), size_bytes_(borrowed.size()), borrowed_(borrowed) {
  SLUICE_CHECK(tier == Tier::host || tier == Tier::pinned,
               "host memory is no home on tier " + std::string(name_of(tier)));
}

TieredBytes::TieredBytes(DeviceSpan borrowed)
    : tier_(Tier::device), size_bytes_(borrowed.size_bytes()), borrowed_on_device_(borrowed) {}

TieredBytes::TieredBytes(FileRange range)
    : tier_(Tier::nvme), size_bytes_(range.size_bytes), range_(range) {
  SLUICE_CHECK(range.file != nullptr, "a file range without a file");
}

std::span<std::byte> TieredBytes::host_memory() const {
  SLUICE_CHECK(in_memory(), "bytes on tier nvme are not in memory: fetch them first");
  SLUICE_CHECK(tier_ != Tier::device, "bytes on tier device are not host memory");
  return buffer_ ? buffer_.bytes() : borrowed_;
}

DeviceSpan TieredBytes::device_memory() const {
  SLUICE_CHECK(tier_ == Tier::device,
               "bytes on tier " + std::string(name_of(tier_)) + " are not device memory");
  return buffer_ ? buffer_.device_span() : borrowed_on_device_;
}

std::span<std::byte> TieredBytes::host_view(const Device& device) const {
  return tier_ == Tier::device ? device.host_view(device_memory()) : host_memory();
}

const FileRange& TieredBytes::range() const {
  SLUICE_CHECK(!in_memory(),
               "bytes on tier " + std::string(name_of(tier_)) + " are in memory, not in a file");
  return range_;
}

}  // namespace sluice::offload
