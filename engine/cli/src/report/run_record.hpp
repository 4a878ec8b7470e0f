#pragma once
// Reads back the --report directory of a run: steps.jsonl, in bounded memory for any number of
// steps, and report.json. Thread-safe: values and free functions without state.

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
  StepBuckets::Bucket training;  // of the last run: its steps without an evaluation
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  std::uint64_t count = 0;
  std::uint64_t missing = 0;        // steps between the first and the last that have no line
  std::optional<double> last_loss;  // of the last step with a finite loss
  std::optional<double> last_eval_loss;
  std::uint64_t non_finite = 0;  // steps without a finite loss
  std::uint64_t skipped = 0;
  std::vector<std::int64_t> first_skipped;  // kListed at most
  double tokens = 0;
  double seconds = 0;
  bool last_line_is_cut = false;  // a killed run may leave such a line; it is not counted
};

// Opens a file of a run for reading. Throws IoError, and StorageError when it is no regular file.
std::ifstream open_record(const std::string& path);

// Reads steps.jsonl, whose last run began with step `first_of_run`. Throws StorageError that names
// the damaged line. Throws IoError.
RunSteps read_steps(const std::string& path, std::int64_t first_of_run);

// Reads report.json. Throws StorageError when it is no JSON object; IoError.
Json::Value read_report(const std::string& path);

// root[a][b]...; empty unless it is a number.
std::optional<double> number_at(const Json::Value& root, std::initializer_list<const char*> keys);
// root[key]; empty unless it is a text.
std::string text_at(const Json::Value& root, const char* key);

}  // namespace sluice::cli
