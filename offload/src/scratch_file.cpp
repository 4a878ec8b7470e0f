#include <sys/file.h>

#include <cerrno>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/offload/swap_store.hpp"
#include "store_files.hpp"

namespace sluice::offload {
namespace {

constexpr std::uint64_t kRangeAlignment = 4096;

nvme::SwapFile make_file(const std::string& directory, const std::string& name,
                         std::uint64_t size_bytes, nvme::DirectIo direct) {
  SLUICE_CHECK(!name.empty() && name.find('/') == std::string::npos,
               "\"" + name + "\" cannot be the name of a scratch file");
  SLUICE_CHECK(size_bytes >= 1, "scratch file \"" + name + "\" has no bytes");
  nvme::SwapFile file(scratch_path(directory, name), nvme::OpenMode::create, direct);
  // A file that a killed run left is taken over; one that is in use is not.
  if (::flock(file.fd(), LOCK_EX | LOCK_NB) != 0) {
    SLUICE_CHECK(errno != EWOULDBLOCK, "scratch file " + file.path() + " is in use already");
    throw IoError(errno, "flock", file.path());
  }
  try {
    file.allocate(align_up(size_bytes, kRangeAlignment));
  } catch (...) {
    remove_file_quietly(file.path());
    throw;
  }
  return file;
}

}  // namespace

ScratchFile::ScratchFile(const std::string& directory, const std::string& name,
                         std::uint64_t size_bytes, nvme::DirectIo direct)
    : file_(make_file(directory, name, size_bytes, direct)), size_bytes_(size_bytes) {}

ScratchFile::~ScratchFile() {
  remove_file_quietly(file_.path());
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
