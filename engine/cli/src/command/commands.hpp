#pragma once
// The commands. A command that ends as asked returns an exit code: 0, a signal's, or the code for
// its finding (nvme verify: damage). Otherwise a command throws the types of sluice/base/error.hpp.
// Confined to thread: main.

#include "command/arguments.hpp"
#include "command/session.hpp"

namespace sluice::cli {

int run_train(const TrainArguments& arguments, Session& session);
int run_plan(const PlanArguments& arguments, Session& session);
int run_generate(const GenerateArguments& arguments, Session& session);
int run_export(const ExportArguments& arguments, Session& session);
int run_report(const ReportArguments& arguments, Session& session);
int run_doctor(Session& session);
int run_config_check(const ConfigCheckArguments& arguments, Session& session);
int run_config_keys(Session& session);
int run_config_resolve(const ConfigResolveArguments& arguments, Session& session);
int run_config_rates(const ConfigRatesArguments& arguments, Session& session);
int run_config_explain(const ConfigExplainArguments& arguments, Session& session);
int run_config_schema(Session& session);
int run_config_convert(const ConfigConvertArguments& arguments, Session& session);
int run_nvme_bench(const NvmeBenchArguments& arguments, Session& session);
int run_nvme_tune(const NvmeTuneArguments& arguments, Session& session);
int run_nvme_verify(const NvmeVerifyArguments& arguments, Session& session);
int run_nvme_clean(const NvmeCleanArguments& arguments, Session& session);
int run_launch(const LaunchArguments& arguments, Session& session);

}  // namespace sluice::cli
