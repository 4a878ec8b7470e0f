#include <optional>
#include <utility>
#include <vector>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/written.hpp"
#include "sluice/offload/scratch_file.hpp"
#include "swap/store_drives.hpp"
#include "swap/store_files.hpp"

namespace sluice::offload {
namespace {

constexpr std::uint64_t kRangeAlignment = 4096;

void remove_parts(const nvme::StripedFile& file) {
  for (const nvme::SwapFile& part : file.parts()) remove_file_quietly(part.path());
}

nvme::StripedFile make_file(const SwapPlace& place, const std::string& name,
                            std::uint64_t size_bytes, nvme::DirectIo direct) {
  SLUICE_CHECK(!name.empty() && name.find('/') == std::string::npos,
               "\"" + name + "\" cannot be the name of a scratch file");
  SLUICE_CHECK(size_bytes >= 1, "scratch file \"" + name + "\" has no bytes");
  const Stripe stripe = new_stripe(place);
  std::vector<nvme::SwapFile> parts;
  for (const std::string& directory : stripe.directories) {
    const std::string path = scratch_path(directory, name);
    // A file that a killed run left is taken over; one that is in use is not.
    std::optional<nvme::SwapFile> part = nvme::SwapFile::open_locked(path, direct, parts.size());
    SLUICE_CHECK(part.has_value(), "scratch file " + path + " is in use already");
    parts.push_back(*std::move(part));
  }
  nvme::StripedFile file(std::move(parts), stripe.layout);
  try {
    file.allocate(align_up(size_bytes, kRangeAlignment));
  } catch (...) {
    remove_parts(file);
    throw;
  }
  return file;
}

}  // namespace

ScratchFile::ScratchFile(const SwapPlace& place, const std::string& name, std::uint64_t size_bytes,
                         nvme::DirectIo direct)
    : file_(make_file(place, name, size_bytes, direct)), size_bytes_(size_bytes) {}

ScratchFile::~ScratchFile() {
  remove_parts(file_);
}

FileRange ScratchFile::take(std::uint64_t size_bytes) {
  SLUICE_CHECK(used_bytes_ <= size_bytes_ && size_bytes <= size_bytes_ - used_bytes_,
               file_.path() + ": a range of " + std::to_string(size_bytes) +
                   " bytes is asked for, " +
                   std::to_string(size_bytes_ - std::min(size_bytes_, used_bytes_)) + " of " +
                   std::to_string(size_bytes_) + " are left");
  const FileRange range{&file_, used_bytes_, size_bytes};
  used_bytes_ = align_up(checked_add(used_bytes_, size_bytes), kRangeAlignment);
  return range;
}

}  // namespace sluice::offload
