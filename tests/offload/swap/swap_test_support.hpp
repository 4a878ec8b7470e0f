#pragma once
// Shared by the tests of the swap store: stores, and what they hold.

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "file_text.hpp"
#include "flip_bit.hpp"
#include "nvme/nvme_test_support.hpp"
#include "sluice/base/error.hpp"
#include "sluice/offload/swap_directory.hpp"
#include "temp_dir.hpp"
#include "written_steps.hpp"

namespace sluice::offload::test {

using nvme::message_of;
using nvme::same_bytes;
using sluice::test::flip_bit;
using sluice::test::names_in;
using sluice::test::TempDir;

// Several chunks and a rest; less than a block; exactly one chunk; one byte.
inline std::vector<ShardSpec> some_shards() {
  return {{"blocks.0.attention", 3 * kChecksumChunkBytes + 123},
          {"blocks.0.norm", 100},
          {"embedding", kChecksumChunkBytes},
          {"scale", 1}};
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

inline void expect_whole(SwapStore& store) {
  for (std::size_t i = 0; i < store.shard_count(); ++i)
    EXPECT_NO_THROW(store.check(i, 0, read_shard(store, i)));
}

inline VerifyReport verify(const std::string& directory, nvme::IoEngine& io) {
  MemoryPool staging(Tier::host, kUnlimited, make_host_source());
  VerifyReport report;
  verify_directory(directory, io, staging, {}, report);
  return report;
}

inline std::string read_text(const std::string& path) {
  const std::vector<std::byte> bytes = nvme::read_whole_file(path);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline void write_text(const std::string& path, const std::string& text) {
  nvme::write_whole_file(path, std::as_bytes(std::span(text.data(), text.size())));
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
