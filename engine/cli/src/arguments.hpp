#pragma once
// The command line as values: what argv asked for, checked. Knows nothing of what the commands do.
// Thread-safe: values and free functions without state.

#include <string>
#include <variant>
#include <vector>

#include "sluice/base/dtype.hpp"
#include "sluice/train/library.hpp"

namespace sluice::cli {

// Something to print, and done: a help text or the version.
struct ShowText {
  std::string text;
};
struct TrainArguments {
  train::TrainRequest request;
};
// The request of the run to plan; data_path may be empty.
struct PlanArguments {
  train::TrainRequest request;
};
struct GenerateArguments {
  train::GenerateRequest request;
};
struct ExportArguments {
  std::string run_directory;
  std::string out_path;
  DType dtype = DType::fp32;
};
struct DoctorArguments {};
struct ConfigCheckArguments {
  std::string path;
};
struct ConfigKeysArguments {};
struct NvmeVerifyArguments {
  std::string directory;
};
struct NvmeCleanArguments {
  std::string directory;
  bool committed = false;
  bool dry_run = false;
};

struct Invocation {
  std::variant<ShowText, TrainArguments, PlanArguments, GenerateArguments, ExportArguments,
               DoctorArguments, ConfigCheckArguments, ConfigKeysArguments, NvmeVerifyArguments,
               NvmeCleanArguments>
      command;
  bool json = false;
};

// `arguments` without the program's name. Throws InvalidArgument with one message that names the
// command, the flag and, for a flag or command that does not exist, the nearest one.
Invocation parse_arguments(const std::vector<std::string>& arguments);

}  // namespace sluice::cli
