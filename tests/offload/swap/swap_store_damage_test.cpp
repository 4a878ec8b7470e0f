// Files of a swap store that were cut, changed, lost or never its own: found, named, never taken
// for good.

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <utility>
#include <vector>

#include "sluice/offload/directory_lock.hpp"
#include "swap_test_support.hpp"

namespace sluice::offload::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(SwapStoreTest, ASlotFileThatIsRemovedReplacedOrCutIsFoundAtTheCommit) {
  using Harm = std::function<void(const std::string& path)>;
  const auto copy_in_place = [](const std::string& path) {
    std::filesystem::copy_file(path, path + ".copy");
    std::filesystem::rename(path + ".copy", path);
  };
  const auto cut = [](const std::string& path) { std::filesystem::resize_file(path, 4096); };
  // As a write to the file's end does, after somebody has cut it.
  const auto cut_and_grow = [&](const std::string& path) {
    const auto size_bytes = std::filesystem::file_size(path);
    cut(path);
    std::filesystem::resize_file(path, size_bytes);
  };
  for (const auto& [harm, said] : std::vector<std::pair<Harm, std::string>>{
           {[](const std::string& path) { std::filesystem::remove(path); }, "removed or replaced"},
           {copy_in_place, "removed or replaced"},
           {cut, "cut from"},
           {cut_and_grow, "holes"}}) {
    const TempDir place;
    const auto store = SwapStore::create(place.path(), *engine_, some_shards(), Durability::process,
                                         nvme::DirectIo::automatic);
    update_all(*store, 1);
    store->commit(1, "{}");
    update_all(*store, 2);
    harm(place.file("states.1.swap"));
    EXPECT_THAT(message_of<IoError>([&] { store->commit(2, "{}"); }),
                AllOf(HasSubstr(place.file("states.1.swap")), HasSubstr(said)));
    EXPECT_EQ(SwapStore::read_committed(place.path()).step, 1);
  }
}

// Another run may have locked the directory anew, and hold what the step would overwrite.
TEST_F(SwapStoreTest, ALockThatIsRemovedOrReplacedEndsWritesAndCommits) {
  const auto remove = [](const std::string& path) { std::filesystem::remove(path); };
  const auto replace = [&](const std::string& path) {
    remove(path);
    const DirectoryLock of_another(std::filesystem::path(path).parent_path().string(),
                                   DirectoryLock::Mode::exclusive);
  };
  for (const std::function<void(const std::string&)>& harm :
       {std::function<void(const std::string&)>(remove), {replace}}) {
    for (const bool caller_holds : {false, true}) {
      const TempDir place;
      HeldDirectories held;
      SwapPlace where(place.path());
      if (caller_holds) {
        held.hold(place.path());
        where.held = &held;
      }
      const auto store = SwapStore::create(where, *engine_, some_shards(), Durability::process,
                                           nvme::DirectIo::automatic);
      update_all(*store, 1);
      store->commit(1, "{}");
      update_all(*store, 2);
      harm(place.file("lock"));
      const auto is_said = AllOf(HasSubstr(place.file("lock")), HasSubstr("removed or replaced"));
      EXPECT_THAT(message_of<StorageError>([&] { store->commit(2, "{}"); }), is_said);
      EXPECT_THAT(message_of<StorageError>([&] { store->prepare_commit(2, "{}"); }), is_said);
      EXPECT_THAT(message_of<StorageError>([&] { update_all(*store, 3); }), is_said);
      EXPECT_EQ(SwapStore::read_committed(place.path()).step, 1);
    }
  }
}

// Between commits the open files are enough: a directory may be moved, and moved back.
TEST_F(SwapStoreTest, ARenamedLockIsFoundAtTheCommit) {
  const auto store = create();
  update_all(*store, 1);
  for (const std::string& path : {dir_.path(), dir_.file("lock")}) {
    std::filesystem::rename(path, path + ".away");
    update_all(*store, 2);
    std::string said = message_of<std::exception>([&] { store->commit(2, "{}"); });
    EXPECT_THAT(said, HasSubstr("removed or replaced")) << path;
    std::filesystem::rename(path + ".away", path);
  }
  store->commit(2, "{}");
  EXPECT_EQ(difference_from(*store, 2), "");
}

TEST_F(SwapStoreTest, SaysThatWhatItCommittedCannotBeResumed) {
  const auto store = create();
  update_all(*store, 1);
  store->commit(1, "{}");
  EXPECT_NO_THROW(store->check_committed());
  const std::string slot = dir_.file("states.0.swap");
  const auto size_bytes = std::filesystem::file_size(slot);
  std::filesystem::resize_file(slot, 4096);
  EXPECT_THAT(message_of<StorageError>([&] { store->check_committed(); }),
              AllOf(HasSubstr(slot), HasSubstr("is cut off")));
  std::filesystem::resize_file(slot, size_bytes);
  const TempDir other;
  {
    const auto of_another = SwapStore::create(other.path(), *engine_, some_shards(),
                                              Durability::process, nvme::DirectIo::automatic);
    update_all(*of_another, 7);
    of_another->commit(7, "{}");
  }
  std::filesystem::rename(other.file("manifest.json"), dir_.file("manifest.json"));
  EXPECT_THAT(message_of<StorageError>([&] { store->check_committed(); }),
              HasSubstr("another run has committed step 7 there"));
}

// Ends a text as a manifest ends, so that only what the text says is wrong.
std::string with_checksum(const std::string& body) {
  std::array<char, 32> line{};
  std::snprintf(line.data(), line.size(), "xxh3-64:%016llx\n",
                static_cast<unsigned long long>(XXH3_64bits(body.data(), body.size())));
  return body + line.data();
}

class DamagedManifest : public SwapStoreTest {
 protected:
  void SetUp() override {
    const auto store = SwapStore::create(dir_.path(), *engine_, {{"w", 5000}, {"b", 3}},
                                         Durability::process, nvme::DirectIo::automatic);
    update_all(*store, 21);
    store->commit(21, "{\"cursor\": 1}");
    text_ = read_text(manifest_);
  }
  // The error for a manifest with this text, which every way to open gives.
  std::string refusal(const std::string& text) {
    write_text(manifest_, text);
    std::string said = message_of<StorageError>([&] { SwapStore::holds_committed(dir_.path()); });
    EXPECT_EQ(said, message_of<StorageError>([&] { open(); }));
    EXPECT_EQ(said, message_of<StorageError>([&] { create(); }));
    EXPECT_THAT(said, HasSubstr(manifest_));
    return said;
  }
  // The manifest with one part of its text replaced, and the right checksum for that.
  std::string with(const std::string& part, const std::string& replacement) {
    std::string body = text_.substr(0, text_.rfind("xxh3-64:"));
    const std::size_t at = body.find(part);
    EXPECT_NE(at, std::string::npos) << part;
    return with_checksum(body.replace(at, part.size(), replacement));
  }

  const std::string manifest_ = dir_.file("manifest.json");
  std::string text_;
};

TEST_F(DamagedManifest, IsRefusedWhereverItWasCutOff) {
  for (std::size_t size = text_.size(); size-- > 0;) {
    std::filesystem::resize_file(manifest_, size);
    EXPECT_THAT(message_of<StorageError>([&] { SwapStore::read_committed(dir_.path()); }),
                AllOf(HasSubstr(manifest_), HasSubstr("start over")))
        << size;
  }
  write_text(manifest_, text_);
  EXPECT_EQ(SwapStore::read_committed(dir_.path()).step, 21);
}

TEST_F(DamagedManifest, IsRefusedWhicheverBitChanged) {
  for (std::size_t at = 0; at < text_.size(); ++at) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      flip_bit(manifest_, at, bit);
      EXPECT_THROW(SwapStore::read_committed(dir_.path()), StorageError) << at << " bit " << bit;
      flip_bit(manifest_, at, bit);
    }
  }
  EXPECT_EQ(SwapStore::read_committed(dir_.path()).step, 21);
}

TEST_F(DamagedManifest, IsNamedWithWhatIsWrong) {
  EXPECT_THAT(refusal(""), HasSubstr("is empty"));
  EXPECT_THAT(refusal("{\"step\": 3}\n"), HasSubstr("its last line is not a checksum"));
  EXPECT_THAT(refusal(text_ + "\n"), HasSubstr("its last line is not a checksum"));
  std::string changed = text_;
  changed[10] = 'X';
  EXPECT_THAT(refusal(changed), AllOf(HasSubstr("is damaged"), HasSubstr("xxh3-64:")));
  EXPECT_THAT(refusal(with_checksum("not JSON\n")), HasSubstr("is not JSON"));
  EXPECT_THAT(refusal(with_checksum("[1]\n")), HasSubstr("has no \"format\""));
}

TEST_F(DamagedManifest, IsRefusedWhenItIsAnothersOrOfAnotherVersion) {
  EXPECT_THAT(refusal(with("sluice-swap-store", "recipe")), HasSubstr("its format is \"recipe\""));
  EXPECT_THAT(refusal(with("\"version\": 1", "\"version\": 3")),
              AllOf(HasSubstr("format version 3"), HasSubstr("reads versions up to 2")));
  EXPECT_THAT(refusal(with("\"version\": 1", "\"version\": 2")), HasSubstr("striped"));
}

TEST_F(DamagedManifest, IsRefusedWhenItSaysImpossibleThings) {
  EXPECT_THAT(refusal(with("\"slot\": 0", "\"slot\": 2")), HasSubstr("impossible slot"));
  EXPECT_THAT(refusal(with("\"slot\": 0", "\"slot\": -1")), HasSubstr("impossible slot"));
  EXPECT_THAT(refusal(with("\"slot\": 0", "\"slot\": \"0\"")), HasSubstr("unexpected type"));
  EXPECT_THAT(refusal(with("\"size_bytes\": 5000", "\"size_bytes\": 5000000")),
              HasSubstr("checksum list"));
  EXPECT_THAT(refusal(with("\"size_bytes\": 5000", "\"size_bytes\": -1")),
              HasSubstr("unexpected type"));
  EXPECT_THAT(refusal(with("\"size_bytes\": 5000", "\"size_bytes\": 18446744073709551615")),
              HasSubstr("checksum list"));
  EXPECT_THAT(refusal(with("\"size_bytes\": 5000", "\"size_bytes\": 9000")),
              HasSubstr("does not lie where"));
  EXPECT_THAT(refusal(with("\"name\": \"b\"", "\"name\": \"w\"")), HasSubstr("two shards"));
  EXPECT_THAT(refusal(with("\"durability\": \"process\"", "\"durability\": \"eternal\"")),
              HasSubstr("eternal"));
  EXPECT_THAT(refusal(with("\"chunk_bytes\": 1048576", "\"chunk_bytes\": 4096")),
              HasSubstr("another size"));
  EXPECT_THAT(refusal(with("\"step\"", "\"stop\"")), HasSubstr("has no \"step\""));
  EXPECT_THAT(refusal(with("\"checksums\": \"", "\"checksums\": \"zz")),
              HasSubstr("checksum list"));
}

TEST_F(SwapStoreTest, NamesASlotFileThatIsAbsent) {
  commit_first(8);
  std::filesystem::remove(dir_.file("states.0.swap"));
  const std::string said = message_of<StorageError>([&] { open(); });
  EXPECT_THAT(said, AllOf(HasSubstr(dir_.file("states.0.swap")), HasSubstr("is absent"),
                          HasSubstr("committed step 8"), HasSubstr("restore it")));
  EXPECT_EQ(said,
            message_of<StorageError>([&] { SwapStore::open_read_only(dir_.path(), *engine_); }));
  EXPECT_FALSE(std::filesystem::exists(dir_.file("states.0.swap"))) << "none may be made up";
}

TEST_F(SwapStoreTest, NamesASlotFileThatWasCutOff) {
  commit_first(8);
  const std::uint64_t last_bytes =
      4 * kChecksumChunkBytes + std::uint64_t{2} * 4096;  // where "scale" lies
  std::filesystem::resize_file(dir_.file("states.0.swap"), last_bytes);
  EXPECT_THAT(
      message_of<StorageError>([&] { open(); }),
      AllOf(HasSubstr(dir_.file("states.0.swap")), HasSubstr("is cut off"),
            HasSubstr("has " + std::to_string(last_bytes) + " bytes"),
            HasSubstr("at least " + std::to_string(last_bytes + 1)), HasSubstr("\"scale\"")));
  EXPECT_EQ(std::filesystem::file_size(dir_.file("states.0.swap")), last_bytes);
}

TEST_F(SwapStoreTest, NamesASlotFileThatIsNoRegularOne) {
  commit_first(8);
  for (const char* name : {"states.0.swap", "states.1.swap"}) {
    const std::string path = dir_.file(name);
    const bool is_committed = path.ends_with("0.swap");
    std::filesystem::rename(path, dir_.file("kept"));
    std::filesystem::create_directory(path);
    const std::string said = message_of<StorageError>([&] { open(); });
    EXPECT_THAT(said, HasSubstr(path + ": is not a regular file"));
    EXPECT_THAT(said, HasSubstr(is_committed ? "restore it from a copy" : "remove it"));
    std::filesystem::remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    EXPECT_EQ(message_of<StorageError>([&] { open(); }), said);
    std::filesystem::rename(dir_.file("kept"), path);
  }
  EXPECT_EQ(difference_from(*open(), 8), "");
}

TEST_F(SwapStoreTest, MakesTheSlotAnewThatHoldsNothingCommitted) {
  commit_first(8);
  std::filesystem::remove(dir_.file("states.1.swap"));
  EXPECT_EQ(difference_from(*SwapStore::open_read_only(dir_.path(), *engine_), 8), "");
  const auto store = open();
  EXPECT_EQ(difference_from(*store, 8), "");
  update_all(*store, 9);
  store->commit(9, "{}");
  EXPECT_EQ(difference_from(*store, 9), "");
}

TEST_F(SwapStoreTest, FindsAFlippedBitAnywhereAndNamesShardAndOffset) {
  commit_first(5);
  const auto store = SwapStore::open_read_only(dir_.path(), *engine_);
  std::mt19937_64 random(20240607);
  for (int round = 0; round < 40; ++round) {
    const std::size_t index = random() % store->shard_count();
    const ShardSpec& shard = store->shard(index);
    std::uint64_t start_bytes = 0;
    for (std::size_t i = 0; i < index; ++i) {
      start_bytes += (store->shard(i).size_bytes + 4095) / 4096 * 4096;
    }
    const std::uint64_t at = random() % shard.size_bytes;
    const auto bit = static_cast<unsigned>(random() % 8);
    flip_bit(dir_.file("states.0.swap"), start_bytes + at, bit);

    const std::vector<DamagedRange> damaged = verify(dir_.path(), *engine_).damaged;
    ASSERT_EQ(damaged.size(), 1U) << shard.name << " at " << at;
    const std::uint64_t chunk_bytes = at / kChecksumChunkBytes * kChecksumChunkBytes;
    EXPECT_EQ(damaged[0].shard, shard.name);
    EXPECT_EQ(damaged[0].path, dir_.file("states.0.swap"));
    EXPECT_EQ(damaged[0].offset_bytes, chunk_bytes);
    EXPECT_EQ(damaged[0].size_bytes, std::min(kChecksumChunkBytes, shard.size_bytes - chunk_bytes));
    EXPECT_EQ(damaged[0].file_offset_bytes, start_bytes + chunk_bytes);
    const auto bytes = read_shard(*store, index);
    EXPECT_THAT(message_of<StorageError>([&] { store->check(index, 0, bytes); }),
                AllOf(HasSubstr(dir_.file("states.0.swap")), HasSubstr(shard.name),
                      HasSubstr("its offset " + std::to_string(chunk_bytes) + " "),
                      HasSubstr("file offset " + std::to_string(start_bytes + chunk_bytes))));
    flip_bit(dir_.file("states.0.swap"), start_bytes + at, bit);
  }
  EXPECT_TRUE(verify(dir_.path(), *engine_).damaged.empty());
}

TEST_F(SwapStoreTest, FindsManyDamagedRangesInOneGo) {
  std::vector<ShardSpec> shards = {{"large", 30 * kChecksumChunkBytes + 1}};
  auto store = SwapStore::create(dir_.path(), *engine_, shards, Durability::process,
                                 nvme::DirectIo::automatic);
  update_all(*store, 1);
  store->commit(1, "{}");
  store.reset();
  for (const std::uint64_t chunk : {0U, 7U, 8U, 29U, 30U}) {
    flip_bit(dir_.file("states.0.swap"), chunk * kChecksumChunkBytes, 3);
  }
  using Range = std::pair<std::uint64_t, std::uint64_t>;
  const std::vector<Range> expected = {{0, kChecksumChunkBytes},
                                       {7 * kChecksumChunkBytes, 2 * kChecksumChunkBytes},
                                       {29 * kChecksumChunkBytes, kChecksumChunkBytes + 1}};
  std::vector<Range> found;
  for (const DamagedRange& range : verify(dir_.path(), *engine_).damaged) {
    found.emplace_back(range.offset_bytes, range.size_bytes);
    EXPECT_EQ(range.why, "differs from its checksum");
  }
  EXPECT_EQ(found, expected) << "neighbours are one range";
  // Two buffers are enough; with room for none it says so.
  MemoryPool small(Tier::host, 2 * kChecksumChunkBytes + 4096, make_host_source());
  VerifyReport report;
  verify_directory(dir_.path(), *engine_, small, {}, report);
  EXPECT_EQ(report.damaged.size(), expected.size());
  EXPECT_LE(small.usage().peak_live_bytes, small.usage().limit_bytes);
  MemoryPool tiny(Tier::host, kChecksumChunkBytes - 1, make_host_source());
  EXPECT_THROW(verify_directory(dir_.path(), *engine_, tiny, {}, report), OutOfMemory);
}

}  // namespace
}  // namespace sluice::offload::test
