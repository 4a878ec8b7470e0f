#pragma once
// What a run wrote into its --report directory, read back: steps.jsonl in bounded memory however
// many steps it has, and report.json. Thread-safe: values and free functions without state.

#include <json/value.h>

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "report/step_buckets.hpp"

namespace sluice::cli {

struct RunSteps {
  static constexpr std::size_t kListed = 20;

  StepBuckets buckets;
  StepBuckets::Bucket training;  // of all steps that only train: evaluations move bytes too
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  std::uint64_t count = 0;
  std::optional<double> last_loss;  // of the last steps that have one
  std::optional<double> last_eval_loss;
  std::uint64_t not_finite = 0;  // losses
  std::uint64_t skipped = 0;
  std::vector<std::int64_t> first_skipped;  // kListed at most
  double tokens = 0;
  double seconds = 0;
  bool last_line_is_cut = false;  // as a killed run may leave it; left out
};

// A file of a run, to be read. Throws IoError, and StorageError where it is no regular file.
std::ifstream open_record(const std::string& path);

// Reads steps.jsonl. Throws StorageError naming the line that is damaged; IoError.
RunSteps read_steps(const std::string& path);

// Reads report.json. Throws StorageError when it is no JSON object; IoError.
Json::Value read_report(const std::string& path);

// root[a][b]..., where it is a number.
std::optional<double> number_at(const Json::Value& root, std::initializer_list<const char*> keys);
// root[key], where it is a text; else an empty one.
std::string text_at(const Json::Value& root, const char* key);

}  // namespace sluice::cli
