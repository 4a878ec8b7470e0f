#include "swap/slot_files.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/fd.hpp"
#include "sluice/base/written.hpp"

namespace sluice::offload {
namespace {

bool is_file(const std::string& path) {  // or a link to one
  std::error_code unknown;
  return std::filesystem::is_regular_file(path, unknown);
}

}  // namespace

SlotLength slot_length(const Stripe& stripe, int slot) {
  SlotLength shortest;
  for (std::size_t part = 0; part < stripe.directories.size(); ++part) {
    SlotLength length;
    length.part = part;
    length.path = slot_path(stripe.directories[part], slot, part);
    length.absent = !file_exists(length.path);
    if (!length.absent) {
      length.file_bytes = file_length_bytes(length.path);
      length.covered_bytes = stripe.layout.covered_bytes(part, length.file_bytes);
    }
    if (part == 0 || length.covered_bytes < shortest.covered_bytes) shortest = std::move(length);
  }
  return shortest;
}

void check_committed_files(const Stripe& stripe, const Manifest& manifest,
                           const StoreLayout& layout) {
  std::array<SlotLength, kSlotCount> lengths;
  for (int slot = 0; slot < kSlotCount; ++slot)
    lengths.at(index_of_slot(slot)) = slot_length(stripe, slot);
  for (std::size_t i = 0; i < manifest.shards.size(); ++i) {
    const ManifestShard& shard = manifest.shards[i];
    const SlotLength& length = lengths.at(index_of_slot(shard.slot));
    const std::string holds = "it holds shard \"" + shard.spec.name + "\" of the committed step " +
                              std::to_string(manifest.step) + ": restore it from a copy, or " +
                              how_to_start_over(stripe.first()) +
                              ", from the newest checkpoint if there is one";
    if (length.absent) throw StorageError(length.path, "is absent, but " + holds);
    if (!is_file(length.path))
      throw StorageError(length.path, "is not a regular file, but " + holds);
    const std::uint64_t end_bytes = layout.offset_bytes[i] + shard.spec.size_bytes;
    if (length.covered_bytes < end_bytes) {
      throw StorageError(length.path,
                         "is cut off: it has " + std::to_string(length.file_bytes) +
                             " bytes, at least " +
                             std::to_string(stripe.layout.part_bytes(length.part, end_bytes)) +
                             " are needed; " + holds);
    }
  }
}

std::uint64_t missing_disk_bytes(const Stripe& stripe, std::size_t part, SlotSet wanted,
                                 std::uint64_t file_bytes) {
  const std::uint64_t part_bytes = stripe.layout.part_bytes(part, file_bytes);
  std::uint64_t missing_bytes = 0;
  for (int slot = 0; slot < kSlotCount; ++slot) {
    if (!wanted.at(index_of_slot(slot))) continue;
    const std::uint64_t there_bytes =
        file_disk_bytes(slot_path(stripe.directories[part], slot, part));
    missing_bytes += part_bytes - std::min(part_bytes, there_bytes);
  }
  return missing_bytes;
}

namespace {

// The wanted slots, of the files that open_part(path, part) opens.
template <typename OpenPart>
SlotFiles open_slots(const Stripe& stripe, SlotSet wanted, const OpenPart& open_part) {
  SlotFiles files;
  for (int slot = 0; slot < kSlotCount; ++slot) {
    if (!wanted.at(index_of_slot(slot))) continue;
    std::vector<nvme::SwapFile> parts;
    for (std::size_t part = 0; part < stripe.directories.size(); ++part)
      parts.push_back(open_part(slot_path(stripe.directories[part], slot, part), part));
    files.at(index_of_slot(slot)).emplace(std::move(parts), stripe.layout);
  }
  return files;
}

}  // namespace

SlotFiles open_slot_files(const Stripe& stripe, SlotSet wanted, std::uint64_t file_bytes,
                          nvme::DirectIo direct) {
  std::vector<std::string> created;
  const auto open_part = [&](const std::string& path, std::size_t part) {
    if (!file_exists(path)) {
      created.push_back(path);
    } else if (!is_file(path)) {
      throw StorageError(path, "is not a regular file: remove it, or choose another directory");
    }
    nvme::SwapFile file(path, nvme::OpenMode::create, direct, part);
    const std::uint64_t part_bytes = stripe.layout.part_bytes(part, file_bytes);
    // Not repeated where all is there: XFS wants the blocks free a second time.
    if (file_length_bytes(path) < part_bytes || file_disk_bytes(path) < part_bytes)
      file.allocate(part_bytes);
    return file;
  };
  try {
    return open_slots(stripe, wanted, open_part);
  } catch (...) {
    for (const std::string& path : created) remove_file_quietly(path);
    throw;
  }
}

bool have_all_blocks(const SlotFiles& files, std::uint64_t file_bytes) {
  for (const std::optional<nvme::StripedFile>& file : files) {
    if (!file) continue;
    for (std::size_t i = 0; i < file->parts().size(); ++i) {
      if (file->parts()[i].disk_bytes() < file->layout().part_bytes(i, file_bytes)) return false;
    }
  }
  return true;
}

void check_still_there(const SlotFiles& files, std::uint64_t file_bytes, bool had_all_blocks) {
  constexpr const char* kAdvice =
      "; put the files back if they were moved, and go on with --resume; else what the run had "
      "written there is lost: begin anew, or resume from a checkpoint; keep other programs away "
      "from the swap directory";
  for (const std::optional<nvme::StripedFile>& file : files) {
    if (!file) continue;
    for (std::size_t i = 0; i < file->parts().size(); ++i) {
      const nvme::SwapFile& part = file->parts()[i];
      if (!is_file_at(part.fd(), part.path())) {
        throw IoError(
            ENOENT, "commit", part.path(), 0, 0,
            std::string("the file was removed or replaced while the run used it") + kAdvice);
      }
      const std::uint64_t wanted = file->layout().part_bytes(i, file_bytes);
      const std::uint64_t length = part.size_bytes();
      if (length < wanted) {
        throw IoError(EIO, "commit", part.path(), 0, 0,
                      "the file was cut from " + format_bytes(wanted) + " to " +
                          format_bytes(length) + " while the run used it" + kAdvice);
      }
      const std::uint64_t on_disk = part.disk_bytes();
      if (had_all_blocks && on_disk < wanted) {
        throw IoError(EIO, "commit", part.path(), 0, 0,
                      "the file was cut, or had holes punched, while the run used it: it has " +
                          std::to_string(on_disk) + " bytes on the drive, " +
                          std::to_string(wanted) + " were allocated" + kAdvice);
      }
    }
  }
}

SlotFiles open_slot_files_read_only(const Stripe& stripe, SlotSet wanted) {
  return open_slots(stripe, wanted, [](const std::string& path, std::size_t part) {
    return nvme::SwapFile(path, nvme::OpenMode::read_only, nvme::DirectIo::automatic, part);
  });
}

}  // namespace sluice::offload
