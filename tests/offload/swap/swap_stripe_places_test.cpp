// A striped store whose drives are mounted elsewhere than before: the message says in which order
// to name the directories, and no advice loses the run unless it says so.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>

#include "captured_log.hpp"
#include "in_child.hpp"
#include "sluice/base/fd.hpp"
#include "sluice/offload/swap_directory.hpp"
#include "sluice/offload/swap_store.hpp"
#include "swap_test_support.hpp"

namespace sluice::offload::test {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

class SwapStripePlaces : public ::testing::Test {
 protected:
  SwapStripePlaces() {
    for (const char* name : {"a", "b", "c"}) fs::create_directory(at(name));
    const auto store = SwapStore::create({{at("a"), at("b"), at("c")}, {}}, *engine_, some_shards(),
                                         Durability::process, nvme::DirectIo::automatic);
    update_all(*store, 1);
    store->commit(1, "{}");
  }
  std::string at(const std::string& name) const { return dir_.file(name); }
  VerifyReport verify_all(const std::string& directory) { return verify(directory, *engine_); }
  void exchange(const std::string& one, const std::string& other) const {
    fs::rename(at(one), at("between"));
    fs::rename(at(other), at(one));
    fs::rename(at("between"), at(other));
  }
  std::string refused_order(const SwapPlace& place) {
    return message_of<StorageError>(
        [&] { SwapStore::open(place, *engine_, Durability::process, nvme::DirectIo::automatic); });
  }
  static std::string refused(const std::string& directory) {
    return message_of<StorageError>([&] { SwapStore::holds_committed(directory); });
  }

  TempDir dir_;
  std::unique_ptr<nvme::IoEngine> engine_ = make_engine();
};

TEST_F(SwapStripePlaces, ExchangedMountPointsAreSaidInTheRightOrder) {
  exchange("a", "b");
  const std::string said = refused(at("a"));
  EXPECT_THAT(said, HasSubstr("has part 2 of 3 of the run that is in " + at("b") + " now"));
  EXPECT_THAT(said, HasSubstr("name the directories in the order " + at("b") + ", " + at("a") +
                              ", " + at("c") + "; "));
  EXPECT_THAT(said, Not(HasSubstr("not there")));
  EXPECT_THAT(said, MatchesRegex(".*sluice nvme clean --committed .* loses the run"));
  const auto store = SwapStore::open({{at("b"), at("a"), at("c")}, {}}, *engine_,
                                     Durability::process, nvme::DirectIo::automatic);
  EXPECT_EQ(difference_from(*store, 1), "");
}

// A mistaken clean would leave files behind that are a run no more.
TEST_F(SwapStripePlaces, NoPartIsClearedWhileTheFirstIsThereUnderAnotherName) {
  exchange("a", "b");
  for (const CleanScope scope : {CleanScope::leftovers, CleanScope::everything})
    EXPECT_THAT(
        message_of<StorageError>([&] { clean_directory(at("a"), scope, CleanMode::remove); }),
        HasSubstr("in the order " + at("b")));
  EXPECT_TRUE(fs::exists(at("a") + "/stripe.json"));
  clean_directory(at("b"), CleanScope::everything, CleanMode::remove);
  clean_directory(at("a"), CleanScope::everything, CleanMode::remove);
  EXPECT_TRUE(fs::is_empty(at("a")));
}

TEST_F(SwapStripePlaces, AFirstPartThatIsNowhereIsAskedFor) {
  exchange("a", "b");
  fs::rename(at("b"), at("elsewhere"));
  const std::string said = refused(at("a"));
  EXPECT_THAT(said, HasSubstr("drives are mounted elsewhere than before; name the directory with "
                              "part 1 first"));
  EXPECT_THAT(said, Not(HasSubstr("not there")));
}

TEST_F(SwapStripePlaces, AWrongOrderIsAnsweredWithTheRightOne) {
  EXPECT_THAT(refused(at("b")),
              HasSubstr("in the order " + at("a") + ", " + at("b") + ", " + at("c")));
  const std::string said = refused_order({{at("a"), at("c"), at("b")}, {}});
  EXPECT_THAT(said, HasSubstr("but has part 3: name the directories in the order " + at("a") +
                              ", " + at("b") + ", " + at("c")));
  fs::rename(at("b"), at("d"));
  EXPECT_THAT(refused(at("c")), HasSubstr("name that directory first"));
}

TEST_F(SwapStripePlaces, WhoReadsAFurtherDirectoryIsToldTheOrder) {
  const std::uint64_t digest = SwapStore::committed_digest(at("a"));
  const auto expect_refused = [&](const std::function<void()>& body) {
    EXPECT_THAT(message_of<StorageError>(body),
                HasSubstr("has part 2 of 3 of the run in " + at("a") +
                          ": name the directories in the order " + at("a") + ", " + at("b")));
  };
  const auto open = [&](const SwapPlace& place) {
    SwapStore::open(place, *engine_, Durability::process, nvme::DirectIo::automatic);
  };
  expect_refused([&] { open({{at("b"), at("a"), at("c")}, {}}); });
  expect_refused([&] { open(at("b")); });
  expect_refused([&] { SwapStore::open_read_only(at("b"), *engine_); });
  expect_refused([&] { SwapStore::open_read_only(at("b"), *engine_, digest); });
  expect_refused([&] { SwapStore::read_committed(at("b")); });
  expect_refused([&] { SwapStore::committed_digest(at("b")); });
  expect_refused([&] { verify_all(at("b")); });
}

// Its labels name the parts of the original, which may be whole where the copy's are not.
TEST_F(SwapStripePlaces, ACopyIsNotReadBesideItsOriginal) {
  for (const char* name : {"a", "b", "c"}) fs::copy(at(name), at(std::string("copy_") + name));
  const std::string copy = at("copy_a");
  const auto expect_refused = [&] {
    for (const std::string& said :
         {message_of<StorageError>([&] { verify_all(copy); }),
          message_of<StorageError>([&] { SwapStore::open_read_only(copy, *engine_); })})
      EXPECT_THAT(said, HasSubstr(copy + ": is a copy of " + at("a")));
  };
  expect_refused();
  write_text(at("a") + "/manifest.json", "damaged");
  expect_refused();
  // With all of the original away, its parts are asked for.
  for (const char* name : {"a", "b", "c"}) fs::rename(at(name), at(std::string("away_") + name));
  EXPECT_THAT(message_of<StorageError>([&] { verify_all(copy); }),
              HasSubstr(at("b") + ": is absent, but has part 2 of 3 of the run in " + copy));
  // A run that names all directories of the copy makes it one of its own.
  SwapStore::open({{copy, at("copy_b"), at("copy_c")}, {}}, *engine_, Durability::process,
                  nvme::DirectIo::automatic);
  for (const char* name : {"a", "b", "c"}) fs::rename(at(std::string("away_") + name), at(name));
  EXPECT_TRUE(verify_all(copy).damaged.empty());
  fs::remove(at("copy_b") + "/states.0.part2.swap");
  EXPECT_FALSE(verify_all(copy).damaged.empty());
}

// Such a ".." is of the folder that the link leads to.
TEST_F(SwapStripePlaces, ADriveBehindALinkAndTwoDotsIsFound) {
  fs::create_directories(at("else/inner"));
  for (const char* name : {"first", "else/second"}) fs::create_directory(at(name));
  fs::create_directory_symlink(at("else/inner"), at("link"));
  {
    const auto store =
        SwapStore::create({{at("first"), at("link/../second")}, {}}, *engine_, some_shards(),
                          Durability::process, nvme::DirectIo::automatic);
    update_all(*store, 1);
    store->commit(1, "{}");
  }
  EXPECT_TRUE(fs::exists(at("else/second/stripe.json")));
  EXPECT_TRUE(verify_all(at("first")).damaged.empty());
}

TEST_F(SwapStripePlaces, WhereTheOtherPartsOfAMovedFirstOneAreReadIsSaid) {
  EXPECT_TRUE(verify_all(at("a")).damaged.empty());
  fs::rename(at("a"), at("d"));
  const std::string line = at("d") + " was " + at("a") + " when the run had it: its other parts " +
                           "are read where they were then, " + at("b") + ", " + at("c");
  sluice::test::CapturedLog log;
  EXPECT_TRUE(verify_all(at("d")).damaged.empty());
  EXPECT_EQ(difference_from(*SwapStore::open_read_only(at("d"), *engine_), 1), "");
  ASSERT_EQ(log.messages().size(), 2U);
  for (const auto& message : log.messages()) EXPECT_EQ(message.text, line);
}

// Ranks of another number read and remove what a label names.
TEST_F(SwapStripePlaces, LabelsFollowDrivesThatAreMountedElsewhere) {
  const auto move_all = [&](const std::string& from, const std::string& to) {
    for (const char* name : {"a", "b", "c"}) fs::rename(at(from + name), at(to + name));
  };
  const auto read = [&](const SwapPlace& place) { check_parts(place, {}, PartsUse::read); };
  move_all("", "moved_");
  // In any order, and beside others.
  const SwapPlace moved{{at("moved_a"), dir_.path(), at("moved_c"), at("moved_b")}, {}};
  EXPECT_NO_THROW(read(moved));
  EXPECT_THAT(message_of<StorageError>([&] { read(at("moved_a")); }),
              HasSubstr(at("b") + ": is absent, but has part 2 of 3 of the run in "));
  EXPECT_THAT(message_of<StorageError>([&] { check_parts(moved, {}, PartsUse::continued); }),
              HasSubstr("name as many directories"));

  // Left alone: by as many ranks, which open it; where a part is nowhere; as a copy.
  const std::string label = read_text(at("moved_a") + "/stripe.json");
  follow_moved_drives(moved, 1);
  follow_moved_drives({{at("moved_a"), at("moved_b")}, {}}, 2);
  for (const char* name : {"a", "b", "c"})
    fs::copy(at(std::string("moved_") + name), at(std::string("copy_") + name));
  move_all("moved_", "");
  const SwapPlace copy{{at("copy_a"), at("copy_b"), at("copy_c")}, {}};
  follow_moved_drives(copy, 2);
  for (const char* name : {"a", "copy_a"})
    EXPECT_EQ(read_text(at(name) + "/stripe.json"), label) << name;
  EXPECT_THAT(message_of<StorageError>([&] { read(copy); }), HasSubstr("is a copy of " + at("a")));
  move_all("", "moved_");

  sluice::test::CapturedLog log;
  follow_moved_drives(moved, 2);
  EXPECT_TRUE(log.contains(at("moved_a") + ", " + at("moved_b") + ", " + at("moved_c") +
                           " (before: " + at("a") + ", "));
  EXPECT_TRUE(verify_all(at("moved_a")).damaged.empty());
  EXPECT_THAT(read_text(at("moved_c") + "/stripe.json"), HasSubstr("\"committed\" : true"));
  follow_moved_drives(moved, 2);
  EXPECT_EQ(log.messages().size(), 1U) << "nothing is written again";
}

// A label is not called damaged, and no advice says to replace it.
TEST_F(SwapStripePlaces, ALabelThatTheDriveDoesNotReadIsAnErrorOfTheDrive) {
  fs::remove(at("a") + "/manifest.json");  // the label is the first file that is read
  const std::string said = sluice::test::run_in_child([&]() -> std::string {
    const UniqueFd last(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    sluice::test::deny(__NR_read, EIO, static_cast<unsigned>(last.get()));
    return SwapStore::holds_committed(at("a")) ? "committed" : "not committed";
  });
  EXPECT_THAT(said, AllOf(HasSubstr(at("a") + "/stripe.json"), HasSubstr("Input/output error")));
}

TEST_F(SwapStripePlaces, MayHaveNamesThatAreNoUtf8) {
  const std::string folder = at("caf\xe9");
  fs::create_directory(folder);
  for (const char* part : {"/a", "/b"}) fs::create_directory(folder + part);
  {
    const auto store =
        SwapStore::create({{folder + "/a", folder + "/b"}, {}}, *engine_, some_shards(),
                          Durability::process, nvme::DirectIo::automatic);
    update_all(*store, 1);
    store->commit(1, "{}");
  }
  EXPECT_TRUE(verify_all(folder + "/a").damaged.empty());
}

}  // namespace
}  // namespace sluice::offload::test
