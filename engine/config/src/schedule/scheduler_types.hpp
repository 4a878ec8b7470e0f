#pragma once
// The types of schedulers and the names of their parameters, for the parser and the JSON Schema.

#include <string_view>
#include <vector>

namespace sluice::config {

// A type of scheduler, with the names in scheduler.params that it reads.
struct SchedulerType {
  std::string_view name;
  std::vector<std::string_view> parameters;
  std::vector<std::string_view> required;  // of the parameters, those without a default
};
// All types, in the order of SchedulerConfig.
std::vector<SchedulerType> scheduler_types();

}  // namespace sluice::config
