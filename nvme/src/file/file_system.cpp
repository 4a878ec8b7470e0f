#include "sluice/nvme/file_system.hpp"

#include <sys/vfs.h>

#include <algorithm>
#include <array>

#include "sluice/base/error.hpp"

namespace sluice::nvme {

namespace {

constexpr std::string_view kMemory =
    "files there are memory: they use it beside the budgets, are as fast as memory and not as a "
    "drive, and are lost when the machine restarts";
constexpr std::string_view kContainer =
    "a container's own layer over another file system: files there go with the container; a volume "
    "mounted from the drive is safer, and usually faster";
constexpr std::string_view kNetwork =
    "a network file system: every request crosses the network, and locks, space and durability are "
    "what its server makes of them; a local drive is faster";
constexpr std::string_view kProgram =
    "a program serves it: every request costs more, and durability is what that program makes of "
    "it; a file system of the kernel is faster";

struct Known {
  std::uint32_t magic;
  FileSystemKind kind;
};

// Magic numbers of the kernel (statfs(2), include/uapi/linux/magic.h) and of file systems outside
// of the kernel.
constexpr auto kKnown = std::to_array<Known>({
    {0xEF53, {"ext4", ""}},
    {0x58465342, {"xfs", ""}},
    {0x9123683E, {"btrfs", ""}},
    {0xF2F52010, {"f2fs", ""}},
    {0x2FC12FC1, {"zfs", ""}},
    {0x01021994, {"tmpfs", kMemory}},
    {0x858458F6, {"ramfs", kMemory}},
    {0x794C7630, {"overlay", kContainer}},
    {0x6969, {"nfs", kNetwork}},
    {0xFF534D42, {"cifs", kNetwork}},
    {0xFE534D42, {"smb", kNetwork}},
    {0x00C36400, {"ceph", kNetwork}},
    {0x0BD00BD0, {"lustre", kNetwork}},
    {0x47504653, {"gpfs", kNetwork}},
    {0x19830326, {"beegfs", kNetwork}},
    {0x01021997, {"9p", kNetwork}},
    {0x65735546, {"fuse", kProgram}},
});

}  // namespace

FileSystemKind file_system_kind(std::uint32_t magic) {
  const auto known = std::find_if(kKnown.begin(), kKnown.end(),
                                  [magic](const Known& entry) { return entry.magic == magic; });
  return known == kKnown.end() ? FileSystemKind{} : known->kind;
}

namespace {

FileSystemKind kind_of(const std::string& path) {
  struct statfs facts {};
  SLUICE_SYSCALL(::statfs(path.c_str(), &facts), path);
  return file_system_kind(static_cast<std::uint32_t>(facts.f_type));
}

}  // namespace

bool is_memory_file_system(const std::string& path) {
  return kind_of(path).caution == kMemory;
}

std::string file_system_caution(const std::string& path) {
  const FileSystemKind kind = kind_of(path);
  if (kind.caution.empty()) return "";
  return path + " is on " + std::string(kind.name) + ", " + std::string(kind.caution);
}

}  // namespace sluice::nvme
