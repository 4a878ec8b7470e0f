#include "nvme/tune/tuned_config.hpp"

#include <json/reader.h>
#include <json/value.h>
#include <json/writer.h>

#include <filesystem>
#include <fstream>

#include "sluice/base/error.hpp"

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

void check_is_settings(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored) ||
      std::filesystem::file_size(path, ignored) == 0)
    return;
  std::ifstream file(path);
  Json::Value root;
  std::string errors;
  bool settings =
      Json::parseFromStream(Json::CharReaderBuilder(), file, &root, &errors) && root.isObject();
  if (settings) {
    for (const std::string& key : root.getMemberNames())
      settings &= key == "aio" || key == "sluice";
  }
  SLUICE_CHECK(settings, "--out: " + path +
                             ": holds something else than settings of nvme tune, and would be "
                             "replaced; give another name");
}

}  // namespace sluice::cli
