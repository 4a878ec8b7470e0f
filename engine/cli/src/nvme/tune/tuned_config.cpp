#include "nvme/tune/tuned_config.hpp"

#include <json/reader.h>
#include <json/value.h>
#include <json/writer.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string_view>
#include <vector>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/file/paths.hpp"
#include "sluice/base/json/json_reader.hpp"

namespace sluice::cli {

std::string tuned_config(const NvmeTuneArguments& arguments, const TuneOutcome& outcome) {
  Json::Value root(Json::objectValue);
  root["aio"]["block_size"] = outcome.choice.point.setting.block_bytes;
  root["aio"]["queue_depth"] = outcome.choice.point.setting.depth;
  if (outcome.backend == "threads") root["aio"]["intra_op_parallelism"] = arguments.io_threads;
  // A backend that --backend names is written, because the user chose it. Otherwise the
  // configuration's own backend stays: a named one, or the choice of "auto".
  if (arguments.backend != nvme::BackendKind::automatic)
    root["sluice"]["io"]["backend"] = outcome.backend;
  root["sluice"]["io"]["reads_per_write"] = outcome.reads_per_write;
  // Written also when polling loses: the configuration may still have it from an earlier tuning.
  if (!outcome.polled.empty()) root["sluice"]["io"]["submit_polling"] = outcome.submit_polling;
  Json::StreamWriterBuilder builder;
  builder["indentation"] = "  ";
  return Json::writeString(builder, root) + "\n";
}

namespace {

// Longer than any file of settings.
constexpr std::uint64_t kMostFileBytes = 64 * kKiB;

// Every key that tuned_config() writes.
constexpr std::string_view kTunedKeys[] = {
    "aio.block_size",    "aio.queue_depth",           "aio.intra_op_parallelism",
    "sluice.io.backend", "sluice.io.reads_per_write", "sluice.io.submit_polling"};

// Whether every value is that of a key of tuned_config(). `path`: the key path of `value`; empty
// for the whole file.
bool holds_tuned_keys(const Json::Value& value, const std::string& path) {
  if (!value.isObject())
    return !value.isArray() && std::ranges::find(kTunedKeys, path) != std::end(kTunedKeys);
  const std::vector<std::string> keys = value.getMemberNames();
  return std::ranges::all_of(keys, [&](const std::string& key) {
    return holds_tuned_keys(value[key], path.empty() ? key : path + "." + key);
  });
}

bool is_tuned_config(const std::string& path) {
  try {
    // Strict: a comment would be lost too.
    const std::optional<Json::Value> root = parse_json(read_regular_file(path, kMostFileBytes));
    return root && root->isObject() && holds_tuned_keys(*root, "");
  } catch (const StorageError&) {  // too long
    return false;
  }
}

}  // namespace

void check_is_settings(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored) ||
      std::filesystem::file_size(path, ignored) == 0)
    return;
  SLUICE_CHECK(is_tuned_config(path), "--out: " + path +
                                          ": holds something else than settings of nvme tune, and "
                                          "would be replaced; give another name");
}

}  // namespace sluice::cli
