#pragma once
// The commands. Each returns the exit code of a run that ended as asked (0, a signal's, or that of
// what it was to find out) and throws the types of sluice/base/error.hpp otherwise. Confined to
// thread: main.

#include <string>
#include <vector>

#include "arguments.hpp"
#include "session.hpp"
#include "sluice/config/train_config.hpp"

namespace sluice::cli {

int run_train(const TrainArguments& arguments, Session& session);
int run_plan(const PlanArguments& arguments, Session& session);
int run_generate(const GenerateArguments& arguments, Session& session);
int run_export(const ExportArguments& arguments, Session& session);
int run_report(const ReportArguments& arguments, Session& session);
int run_doctor(Session& session);
int run_config_check(const ConfigCheckArguments& arguments, Session& session);
int run_config_keys(Session& session);
int run_nvme_bench(const NvmeBenchArguments& arguments, Session& session);
int run_nvme_tune(const NvmeTuneArguments& arguments, Session& session);
int run_nvme_verify(const NvmeVerifyArguments& arguments, Session& session);
int run_nvme_clean(const NvmeCleanArguments& arguments, Session& session);

// Throws InvalidArgument "FLAG: PATH: why" when the file cannot be read; so that it is known before
// anything is loaded. Without a flag "PATH: why".
void require_file(const std::string& flag, const std::string& path);
void require_file(const std::string& path);

// The configuration in `path` and the files over it. Throws config::ConfigError, and
// InvalidArgument where one is a model's config.json: to list each of its keys as unknown would not
// say so.
config::TrainConfig load_training_config(const std::string& path,
                                         const std::vector<std::string>& tuned_paths);

}  // namespace sluice::cli
