// nvme verify: checks every checksum of a directory. nvme clean: removes the leftovers of a dead
// run.

#include <json/value.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "command/commands.hpp"
#include "process/exit_code.hpp"
#include "process/signals.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"
#include "sluice/models/checkpoints.hpp"
#include "sluice/models/run_state.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/offload/swap_directory.hpp"
#include "terminal/byte_progress.hpp"
#include "terminal/clock.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

// Enough for a drive to be busy while checksums are computed.
constexpr unsigned kChunksInFlight = 16;
constexpr unsigned kIoThreads = 4;  // for the threads backend
// Bounds the output for a directory that is damaged throughout.
constexpr std::size_t kMostLines = 100;

// "swap/" as "swap", so that paths below it read well.
std::string without_slash(std::string directory) {
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  return directory;
}

// The directory to check: `directory`, or the newest checkpoint below it. The lock comes first, so
// that a running run is reported as such; a running run may have nothing committed.
std::string find_committed(const std::string& directory) {
  const offload::DirectoryLock lock(directory, offload::DirectoryLock::Mode::shared);
  return models::find_run(directory);
}

// Fills `report` as offload::verify_directory() does. Returns the seconds.
double verify(const std::string& directory, Console& console, offload::VerifyReport& report) {
  ByteProgress progress(console, "checking", system_clock().seconds);
  const StopSignals signals;
  nvme::BackendChoice choice =
      nvme::make_backend(nvme::BackendKind::automatic, kChunksInFlight, kIoThreads);
  nvme::IoEngineOptions options;
  options.block_bytes = offload::kChecksumChunkBytes;
  options.depth = kChunksInFlight;
  nvme::IoEngine io(std::move(choice.backend), options);
  offload::MemoryPool staging(offload::Tier::host, kChunksInFlight * offload::kChecksumChunkBytes,
                              offload::make_host_source());
  const auto show = [&](std::uint64_t done_bytes, std::uint64_t total_bytes) {
    if (signals.stop() != 0) throw Interrupted(signals.stop());
    progress.show(done_bytes, total_bytes);
  };
  offload::verify_directory(directory, io, staging, show, report);
  return progress.elapsed_seconds();
}

// Each range, then how to go on. Prints nothing when nothing is damaged.
void show_damage(const std::string& directory, const std::vector<offload::DamagedRange>& damaged,
                 Console& console) {
  if (damaged.empty()) return;
  for (std::size_t i = 0; i < damaged.size() && i < kMostLines; ++i) {
    const offload::DamagedRange& range = damaged[i];
    console.print(range.path + ": shard \"" + range.shard + "\", " +
                  std::to_string(range.size_bytes) + " bytes at its offset " +
                  std::to_string(range.offset_bytes) + " (file offset " +
                  std::to_string(range.file_offset_bytes) + "): " + range.why);
  }
  if (damaged.size() > kMostLines) {
    console.print("and " + counted(damaged.size() - kMostLines, "more range") +
                  "; --json lists all");
  }
  console.log(LogLevel::error,
              directory +
                  " is damaged: restore it from a copy, go on from a checkpoint, or "
                  "remove the run (sluice nvme clean " +
                  directory + " --committed) to start over");
}

std::string verify_summary(const offload::VerifyReport& report, double seconds) {
  std::string text =
      "step " + std::to_string(report.step) + ", " + counted(report.shard_count, "shard") + ", " +
      format_bytes(report.checked_bytes) + " checked in " + format_number("%.2f", seconds) +
      " s, " + format_byte_rate(report.checked_bytes, seconds);
  if (report.damaged.empty()) return "whole: " + text;
  std::set<std::string> shards;
  std::uint64_t damaged_bytes = 0;
  for (const offload::DamagedRange& range : report.damaged) {
    shards.insert(range.shard);
    damaged_bytes += range.size_bytes;
  }
  return "DAMAGED: " + text + "; " + format_bytes(damaged_bytes) + " of " +
         counted(shards.size(), "shard") + " cannot be used";
}

Json::Value damage_list(const std::vector<offload::DamagedRange>& damaged) {
  Json::Value list(Json::arrayValue);
  for (const offload::DamagedRange& range : damaged) {
    Json::Value object(Json::objectValue);
    object["file"] = valid_utf8(range.path);
    object["shard"] = valid_utf8(range.shard);
    object["offset_bytes"] = Json::UInt64(range.offset_bytes);
    object["size_bytes"] = Json::UInt64(range.size_bytes);
    object["file_offset_bytes"] = Json::UInt64(range.file_offset_bytes);
    object["why"] = range.why;
    list.append(object);
  }
  return list;
}

// A check that ended early has found damage. Shows both; returns the exit code of the error.
int report_early_end(const std::string& directory, const offload::VerifyReport& report,
                     const std::exception_ptr& error, Session& session) {
  show_damage(directory, report.damaged, session.console());
  const Failure failure = classify(error);
  session.console().log(LogLevel::error, "the check ended early: " + failure.message);
  Json::Value object(Json::objectValue);
  object["directory"] = valid_utf8(directory);
  object["damaged"] = damage_list(report.damaged);
  object["error"] = valid_utf8(failure.message);
  object["exit_code"] = failure.exit_code;
  session.emit(object);
  return failure.exit_code;
}

// The file's name relative to `directory`; the name of a folder ends with a slash.
std::string shown_name(const std::string& directory, const offload::RemovableFile& file) {
  if (file.path == directory) return "./";
  const std::string below = directory + "/";
  // A file on another drive is shown with its whole path.
  return (file.path.starts_with(below) ? file.path.substr(below.size()) : file.path) +
         (file.is_folder ? "/" : "");
}

// "2 files", "1 folder", "6 files and 2 folders".
std::string counted_files(const std::vector<offload::RemovableFile>& files) {
  const auto folders =
      static_cast<std::size_t>(std::ranges::count(files, true, &offload::RemovableFile::is_folder));
  if (folders == files.size()) return counted(folders, "folder");
  const std::string text = counted(files.size() - folders, "file");
  return folders == 0 ? text : text + " and " + counted(folders, "folder");
}

// "step 8", "checkpoint of step 26", "checkpoints of steps 13 and 26"; empty: nothing is committed.
std::string committed_text(const offload::CleanReport& report) {
  const std::vector<std::int64_t>& steps = report.checkpoint_steps;
  std::string text = report.committed_step ? "step " + std::to_string(*report.committed_step) : "";
  if (steps.empty()) return text;
  if (!text.empty()) text += " and ";
  text += steps.size() == 1 ? "checkpoint of step " : "checkpoints of steps ";
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (i > 0) text += i + 1 == steps.size() ? " and " : ", ";
    text += std::to_string(steps[i]);
  }
  return text;
}

std::string clean_summary(const std::string& directory, const NvmeCleanArguments& arguments,
                          const offload::CleanReport& report, std::uint64_t freed_bytes) {
  std::string text = directory + ": nothing to remove";
  if (!report.files.empty()) {
    text = directory + (arguments.dry_run ? ": would remove " : ": removed ") +
           counted_files(report.files) + ", " + format_bytes(freed_bytes) +
           (arguments.dry_run ? " to be freed" : " freed");
  }
  const std::string committed = committed_text(report);
  if (committed.empty()) return text + "; nothing is committed";
  const bool one = report.checkpoint_steps.size() + (report.committed_step ? 1 : 0) == 1;
  const std::string what = "; " + committed;
  if (!arguments.committed) return text + what + (one ? " stays committed" : " stay committed");
  if (arguments.dry_run) return text + what + " would be lost";
  return text + what + (one ? " is no longer there" : " are no longer there");
}

// The step that verify and export use.
std::optional<std::int64_t> newest_step(const offload::CleanReport& report) {
  if (report.committed_step || report.checkpoint_steps.empty()) return report.committed_step;
  return report.checkpoint_steps.back();
}

Json::Value optional_step(const std::optional<std::int64_t>& step, bool wanted) {
  return step && wanted ? Json::Value(Json::Int64(*step)) : Json::Value();
}

}  // namespace

int run_nvme_verify(const NvmeVerifyArguments& arguments, Session& session) {
  Console& console = session.console();
  const std::string directory = find_committed(without_slash(arguments.directory));
  offload::VerifyReport report;
  double seconds = 0;
  try {
    seconds = verify(directory, console, report);
  } catch (...) {
    if (report.damaged.empty()) throw;
    return report_early_end(directory, report, std::current_exception(), session);
  }
  show_damage(directory, report.damaged, console);
  console.print(directory + ": " + verify_summary(report, seconds));

  Json::Value object(Json::objectValue);
  object["directory"] = valid_utf8(directory);
  object["step"] = Json::Int64(report.step);
  object["shards"] = Json::UInt64(report.shard_count);
  object["bytes"] = Json::UInt64(report.checked_bytes);
  object["seconds"] = seconds;
  object["damaged"] = damage_list(report.damaged);
  object["ok"] = report.damaged.empty();
  session.emit(object);
  return report.damaged.empty() ? kExitDone : kExitStorage;
}

int run_nvme_clean(const NvmeCleanArguments& arguments, Session& session) {
  Console& console = session.console();
  const std::string directory = without_slash(arguments.directory);
  const offload::CleanReport report = offload::clean_directory(
      directory,
      arguments.committed ? offload::CleanScope::everything : offload::CleanScope::leftovers,
      arguments.dry_run ? offload::CleanMode::list : offload::CleanMode::remove);
  std::uint64_t freed_bytes = 0;
  std::vector<std::vector<std::string>> rows = {{"file", "on disk", "what"}};
  Json::Value files(Json::arrayValue);
  for (const offload::RemovableFile& file : report.files) {
    freed_bytes += file.disk_bytes;
    rows.push_back({shown_name(directory, file), format_bytes(file.disk_bytes), file.what});
    Json::Value object(Json::objectValue);
    object["file"] = valid_utf8(file.path);
    object["size_bytes"] = Json::UInt64(file.size_bytes);
    object["disk_bytes"] = Json::UInt64(file.disk_bytes);
    object["what"] = file.what;
    files.append(object);
  }
  if (!report.files.empty()) console.print(format_table(rows));
  for (const std::string& missing : report.missing_directories) {
    console.log(LogLevel::warn,
                missing + ": is missing, or has nothing of this run; its files stay");
  }
  for (const std::string& measured : report.measured_files) {
    console.log(LogLevel::warn, measured + ": is measured now by another program, and stays");
  }
  console.print(clean_summary(directory, arguments, report, freed_bytes));

  Json::Value object(Json::objectValue);
  object["directory"] = valid_utf8(directory);
  object["dry_run"] = arguments.dry_run;
  object["files"] = files;
  object["freed_bytes"] = Json::UInt64(freed_bytes);
  object["measured_files"] = Json::Value(Json::arrayValue);
  for (const std::string& measured : report.measured_files)
    object["measured_files"].append(valid_utf8(measured));
  object["kept_step"] = optional_step(newest_step(report), !arguments.committed);
  object["removed_step"] = optional_step(newest_step(report), arguments.committed);
  object["checkpoints"] = Json::Value(Json::arrayValue);
  for (const std::int64_t step : report.checkpoint_steps)
    object["checkpoints"].append(Json::Int64(step));
  session.emit(object);
  return kExitDone;
}

}  // namespace sluice::cli
