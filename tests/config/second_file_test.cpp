// A second configuration file replaces keys of the first.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "message_of.hpp"
#include "sluice/config/train_config.hpp"
#include "temp_dir.hpp"

namespace sluice::config {
namespace {

using ::testing::HasSubstr;

class SecondFile : public ::testing::Test {
 protected:
  TrainConfig load(const std::string& first_sections, const std::string& second) {
    std::ofstream(dir_.file("first.json"))
        << R"({"train_batch_size": 1, "optimizer": {"type": "AdamW"}, )" << first_sections << "}";
    std::ofstream(dir_.file("second.json")) << second;
    return load_train_config(dir_.file("first.json"), {.tuned_paths = {dir_.file("second.json")}});
  }
  test::TempDir dir_;
};

TEST_F(SecondFile, ReplacesTheKeysThatItHas) {
  const TrainConfig config = load(
      R"("aio": {"queue_depth": 5, "block_size": 8192}, "sluice": {"device_bytes": "1MiB", "commit_every": 3})",
      R"({"aio": {"queue_depth": 7}, "sluice": {"device_bytes": "2MiB"}})");
  EXPECT_EQ(config.aio.queue_depth, 7);
  EXPECT_EQ(config.aio.block_size, 8192U);
  EXPECT_EQ(config.sluice.device_bytes.value, 2U << 20U);
  EXPECT_EQ(config.sluice.commit_every, 3);
}

TEST_F(SecondFile, AutoAndNullTakeAValueBack) {
  const std::string first =
      R"("sluice": {"device_bytes": "1MiB", "checkpoint_dir": "/c", "threads": {"compute": 1, "io": 3}})";
  EXPECT_EQ(load(first, R"({"sluice": {"device_bytes": "auto"}})").sluice.device_bytes.kind,
            ByteBudget::Kind::automatic);
  EXPECT_EQ(load(first, R"({"sluice": {"checkpoint_dir": null}})").sluice.checkpoints.directory,
            "");
  const ThreadsConfig one =
      load(first, R"({"sluice": {"threads": {"compute": null}}})").sluice.threads;
  EXPECT_FALSE(one.compute.has_value());
  EXPECT_EQ(one.io, 3);
  for (const char* none : {"\"auto\"", "null"}) {
    const ThreadsConfig threads =
        load(first, std::string(R"({"sluice": {"threads": )") + none + "}}").sluice.threads;
    EXPECT_FALSE(threads.compute.has_value() || threads.io.has_value()) << none;
  }
}

TEST_F(SecondFile, ItsMistakesAreItsOwn) {
  const std::string said = sluice::test::message_of<ConfigError>([&] {
    load(R"("sluice": {"keep": 1, "checkpoint_dir": "/c"})", R"({"sluice": {"keep": 0}})");
  });
  EXPECT_THAT(said, HasSubstr("second.json:1:"));
}

TEST_F(SecondFile, CheckpointsInTheSwapDirectoryAreRefused) {
  const std::string zero =
      R"("zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/swap/a/"}})";
  for (const char* path : {"/swap/a", "/swap/./a/", "/swap/b/../a"}) {
    const std::string key = std::string(R"("sluice": {"checkpoint_dir": ")") + path + "\"}";
    EXPECT_THROW(load(zero + ", " + key, "{}"), ConfigError) << path;
    EXPECT_THROW(load(zero, "{" + key + "}"), ConfigError) << path;
  }
  EXPECT_EQ(load(zero + R"(, "sluice": {"checkpoint_dir": "/swap/a/c"})", "{}")
                .sluice.checkpoints.directory,
            "/swap/a/c");
}

}  // namespace
}  // namespace sluice::config
