// The files of manifests: found, chosen by digest, and replaced.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/fd.hpp"
#include "sluice/base/written.hpp"
#include "swap/manifest.hpp"
#include "swap/store_files.hpp"
#include "swap/stripe.hpp"

namespace sluice::offload {
namespace {

constexpr std::uint64_t kMostManifestBytes = kGiB;  // checksums of 64 TiB

}  // namespace

std::optional<std::string> read_text_file(const std::string& path) {
  // Not blocking: the opening of a FIFO would wait for a writer.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd) return read_regular_file(fd.get(), path, kMostManifestBytes);
  const int error_number = errno;
  if (error_number != ENOENT) throw IoError(error_number, "open", path);
  // ENOENT means no file only where there is a directory to look in.
  const std::string directory = path.substr(0, path.rfind('/'));
  SLUICE_SYSCALL(::access(directory.c_str(), F_OK), directory);
  return std::nullopt;
}

std::uint64_t digest_of(std::string_view text) {
  return checksum_of(std::as_bytes(std::span(text.data(), text.size())));
}

std::string path_of_manifest(const std::string& directory, std::uint64_t digest) {
  for (const std::string& path : {manifest_path(directory), prepared_path(directory)}) {
    const std::optional<std::string> text = read_text_file(path);
    if (text && digest_of(*text) == digest) return path;
  }
  check_is_no_further_part(directory);
  throw StorageError(directory,
                     "does not hold this rank's part of the step that is committed on all ranks: "
                     "it was changed, or is from another run. Restore it from a copy, or " +
                         how_to_start_over(directory) +
                         ", from the newest checkpoint if there is one");
}

std::optional<Manifest> load_manifest(const std::string& directory,
                                      std::optional<std::uint64_t> digest) {
  const std::string path = digest ? path_of_manifest(directory, *digest) : manifest_path(directory);
  const std::optional<std::string> text = read_text_file(path);
  if (!text) return std::nullopt;
  return parse_manifest(*text, path);
}

bool begins_as_manifest(const std::string& path) {
  // O_NONBLOCK: opening a FIFO would otherwise wait for a writer.
  const UniqueFd fd(SLUICE_SYSCALL(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK), path));
  struct stat status {};
  SLUICE_SYSCALL(::fstat(fd.get(), &status), path);
  if (!S_ISREG(status.st_mode)) return false;
  std::string text(manifest_opening().size(), '\0');
  const ssize_t got = SLUICE_SYSCALL(::pread(fd.get(), text.data(), text.size(), 0), path);
  return got == static_cast<ssize_t>(text.size()) && text == manifest_opening();
}

Manifest require_manifest(const std::string& directory, std::optional<std::uint64_t> digest) {
  std::optional<Manifest> manifest = load_manifest(directory, digest);
  if (!manifest) {
    check_is_no_further_part(directory);
    throw StorageError(directory,
                       "holds no committed run: nothing was committed there, or its run with "
                       "durability none did not end in an orderly way; start it anew");
  }
  return *std::move(manifest);
}

void replace_manifest(const std::string& directory, std::string_view text, FileSync sync,
                      Durability durability) {
  replace_file(manifest_path(directory), text,
               {.mode = kStoreFileMode,
                .sync = sync,
                .advice_if_full = durability == Durability::none
                                      ? "make space; nothing was committed here before"
                                      : "make space; what was committed before is whole"});
}

}  // namespace sluice::offload
