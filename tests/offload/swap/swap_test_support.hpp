#pragma once
// Shared by the tests of the swap store: engines, shards whose bytes follow from the step, whole
// updates.

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "file_text.hpp"
#include "nvme/nvme_test_support.hpp"
#include "sluice/base/error.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/swap_directory.hpp"
#include "sluice/offload/swap_store.hpp"
#include "temp_dir.hpp"

namespace sluice::offload::test {

using nvme::message_of;
using nvme::same_bytes;
using sluice::test::names_in;
using sluice::test::TempDir;

// Blocks smaller than a chunk, so that a chunk is several requests.
inline constexpr nvme::IoEngineOptions kSmallBlocks{1U << 16U, 16};

inline std::unique_ptr<nvme::IoEngine> make_engine() {
  return std::make_unique<nvme::IoEngine>(
      nvme::make_backend(nvme::BackendKind::threads, kSmallBlocks.depth, 2).backend, kSmallBlocks);
}

// Several chunks and a rest; less than a block; exactly one chunk; one byte.
inline std::vector<ShardSpec> some_shards() {
  return {{"blocks.0.attention", 3 * kChecksumChunkBytes + 123},
          {"blocks.0.norm", 100},
          {"embedding", kChecksumChunkBytes},
          {"scale", 1}};
}

// The bytes of a shard after `step`.
inline std::vector<std::byte> content_of(const ShardSpec& shard, std::int64_t step) {
  std::seed_seq seed(shard.name.begin(), shard.name.end());
  std::vector<std::uint32_t> key(1);
  seed.generate(key.begin(), key.end());
  std::mt19937_64 random(key[0] + static_cast<std::uint64_t>(step) * 1'000'003U);
  std::vector<std::byte> bytes(shard.size_bytes);
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), bytes.size() - at));
  }
  return bytes;
}

inline void update_shard(SwapStore& store, std::size_t shard, std::int64_t step) {
  const std::vector<std::byte> content = content_of(store.shard(shard), step);
  const std::span<const std::byte> bytes = content;
  std::vector<Ticket> writes;
  for (std::size_t at = 0; at < bytes.size(); at += kChecksumChunkBytes) {
    const std::size_t size = std::min<std::size_t>(kChecksumChunkBytes, bytes.size() - at);
    writes.push_back(store.begin_write(shard, at, bytes.subspan(at, size)));
  }
  finish_all(writes);
  store.finish_update(shard);
}

inline void update_all(SwapStore& store, std::int64_t step) {
  for (std::size_t i = 0; i < store.shard_count(); ++i) update_shard(store, i, step);
}

inline std::vector<std::byte> read_shard(SwapStore& store, std::size_t shard) {
  std::vector<std::byte> bytes(store.shard(shard).size_bytes, std::byte{0x5A});
  store.begin_read(shard, 0, bytes).finish();
  return bytes;
}

// Empty, or the first shard that does not hold the bytes of `step`.
inline std::string difference_from(SwapStore& store, std::int64_t step) {
  for (std::size_t i = 0; i < store.shard_count(); ++i) {
    const std::vector<std::byte> bytes = read_shard(store, i);
    const auto same = same_bytes(bytes, content_of(store.shard(i), step));
    if (!same) return store.shard(i).name + ": " + same.message();
    store.check(i, 0, bytes);
  }
  return "";
}

inline std::vector<DamagedRange> verify(SwapStore& store) {
  MemoryPool staging(Tier::host, kUnlimited, make_host_source());
  return store.verify(staging);
}

inline std::string read_text(const std::string& path) {
  const std::vector<std::byte> bytes = nvme::read_whole_file(path);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline void write_text(const std::string& path, const std::string& text) {
  nvme::write_whole_file(path, std::as_bytes(std::span(text.data(), text.size())));
}

inline void flip_bit(const std::string& path, std::uint64_t offset_bytes, unsigned bit) {
  const UniqueFd fd(SLUICE_SYSCALL(::open(path.c_str(), O_RDWR | O_CLOEXEC), path));
  unsigned char byte = 0;
  ASSERT_EQ(::pread(fd.get(), &byte, 1, static_cast<off_t>(offset_bytes)), 1);
  byte = static_cast<unsigned char>(byte ^ (1U << bit));
  ASSERT_EQ(::pwrite(fd.get(), &byte, 1, static_cast<off_t>(offset_bytes)), 1);
}

// A directory with a store of some_shards() and its engine.
class SwapStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<SwapStore> create(Durability durability = Durability::process) {
    return SwapStore::create(dir_.path(), *engine_, some_shards(), durability,
                             nvme::DirectIo::automatic);
  }
  std::unique_ptr<SwapStore> open(Durability durability = Durability::process) {
    return SwapStore::open(dir_.path(), *engine_, durability, nvme::DirectIo::automatic);
  }
  // A directory in which `step` is committed, every shard in slot 0.
  void commit_first(std::int64_t step, const std::string& metadata = "{}") {
    const auto store = create();
    update_all(*store, step);
    store->commit(step, metadata);
  }

  // Names of the files and folders that were, or would be, removed.
  std::vector<std::string> clean(CleanScope scope, CleanMode mode = CleanMode::remove) {
    report_ = clean_directory(dir_.path(), scope, mode);
    std::vector<std::string> names;
    for (const RemovableFile& file : report_.files)
      names.push_back(std::filesystem::path(file.path).filename());
    return names;
  }
  std::vector<std::string> names_there() const { return names_in(dir_.path()); }

  TempDir dir_;
  std::unique_ptr<nvme::IoEngine> engine_ = make_engine();
  CleanReport report_;
};

}  // namespace sluice::offload::test
