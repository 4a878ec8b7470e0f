#pragma once
// The page of `sluice report`: charts over the steps, and the tables of report.json.
// Thread-safe: values and free functions without state.

#include <json/value.h>

#include <cstdint>
#include <optional>
#include <string>

#include "report/run_record.hpp"
#include "report/trace_step.hpp"

namespace sluice::cli {

struct RunRecord {
  std::string directory;
  RunSteps steps;
  Json::Value report;              // null when the run has no report.json (yet)
  std::int64_t resumed_after = 0;  // the step that the run of report.json continued from
  std::string trace_path;          // empty: no trace
  std::optional<TracedStep> traced;
};

std::string run_page(const RunRecord& run);

}  // namespace sluice::cli
