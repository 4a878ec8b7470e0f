// Files of the patterns and styles that people have (corpus/), each with the verdict and the words
// it should get, as it is and with three flags.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>

#include "config_testing.hpp"

namespace sluice::config::test {
namespace {

using testing::HasSubstr;

struct Expected {
  const char* file;
  bool runs;             // as it is
  bool runs_with_flags;  // --learning-rate, --steps, --per-device-train-batch-size
  const char* words;     // of a note, or of the only problem
};

const Expected kCorpus[] = {
    {"activation_checkpointing", true, true, "mapped: activation_checkpointing.contiguous_memory"},
    {"amp", false, false, "amp: not supported yet"},
    {"autotuning", true, true, "mapped: autotuning: for DeepSpeed's launcher"},
    {"clean", true, true, "mapped: zero_optimization.overlap_comm"},
    {"client_everything", false, true, "or give --per-device-train-batch-size N"},
    {"client_optimizer", true, true, "note: optimizer: the file has none"},
    {"comments", true, true,
     "note: cuda_visible_devices: unknown key, which DeepSpeed ignores; it has no effect here"},
    {"communication", true, true,
     "mapped: seq_parallel_communication_data_type: of sequence parallelism, which is not here"},
    {"compression", false, false, "compression_training: not supported yet"},
    {"compression_off", true, true, "note: optimizer"},
    {"curriculum", false, false, "without it every step has sequences of full length"},
    {"data_efficiency", false, false, "without it every step draws whole sequences"},
    {"deprecated", true, true, "mapped: zero_optimization.cpu_offload: deprecated"},
    {"eight_ranks", false, true,
     "The file is for 8 ranks: --gradient-accumulation-steps 64 trains the same batch on one"},
    {"gradient_sums", true, true, ""},
    {"groups", true, true, ""},
    {"hjson", true, true, ""},
    {"infinity", true, true, "mapped: zero_optimization.offload_param.max_in_cpu: a hint"},
    {"lamb", false, false,
     "\"sluice\": {\"approximate\": true} trains with AdamW instead: no trust"},
    {"lamb_approximate", true, true,
     "warning: optimizer.type: \"Lamb\" is approximated by AdamW: no trust ratio"},
    {"leaf_modules", true, true, "mapped: zero_optimization.leaf_module.classes"},
    {"lion", true, true, ""},
    {"monitors", true, true, ""},
    {"numbers_in_strings", true, true, "note: optimizer"},
    {"one_cycle", true, true, "OneCycle sets the betas: the first cycles with the rate"},
    {"onebit_adam", false, false, "optimizer.type: \"OneBitAdam\" is not supported; \"sluice\""},
    {"other_sections", true, true, "note: sequence_parallel: unknown key, which DeepSpeed ignores"},
    {"prescale", true, true,
     "note: gradient_predivide_factor: no effect with prescale_gradients, as in DeepSpeed"},
    {"progressive_layer_drop", false, false, "without it every layer runs in every step"},
    {"ratio", true, true, "note: optimizer: the file has none"},
    {"sgd", true, true, ""},
    {"static_scale", true, true, "no effect unless loss_scale is 0"},
    {"sub_group_size_zero", true, true, ""},
    {"super_offload", true, true, "mapped: zero_optimization.offload_optimizer.super_offload"},
    {"switched_off", true, true, "note: optimizer"},
    {"tensor_parallel_of_one", false, true, "(--per-device-train-batch-size N)"},
    {"torch_adam", true, true, "0.01, the default of torch's AdamW"},
    {"torch_compile", true, true, "mapped: compile.enabled: of torch.compile"},
    {"torch_schedule", true, true, ""},
    {"trainer_auto", false, true,
     "optimizer.params.lr (--learning-rate LR), train_micro_batch_size_per_gpu "
     "(--per-device-train-batch-size N)"},
    {"trainer_auto_decay", false, true, "scheduler.params.total_num_steps (--steps N)"},
    {"trainer_no_optimizer", false, true, "(--per-device-train-batch-size N)"},
    {"trl_reference_model", true, true,
     "note: zero_optimization.reduce_bucket_size: unknown key, which DeepSpeed ignores"},
    {"typo", false, false, "did you mean \"gradient_accumulation_steps\"?"},
    {"vision", true, true, "mapped: fp16.auto_cast"},
    {"weights_below_stage_3", true, true,
     "note: zero_optimization.offload_param.device: no effect at ZeRO stage 2"},
    {"wandb", true, true, "warning: wandb.enabled: nothing is sent"},
    {"zenflow", false, false, "zero_optimization.zenflow: not supported yet"},
    {"zero_one_adam_approximate", true, true, "\"ZeroOneAdam\" is approximated by AdamW"},
    {"zero_plus_plus", true, true, "mapped: zero_optimization.zero_hpz_partition_size: ZeRO++"},
};

std::vector<Setting> three_flags() {
  return {{"optimizer.params.lr", "1e-4", "--learning-rate"},
          {"scheduler.params.total_num_steps", "1000", "--steps", true},
          {"train_micro_batch_size_per_gpu", "1", "--per-device-train-batch-size"}};
}

// The notes, or the problems.
struct Answer {
  bool runs = false;
  std::size_t problems = 0;
  std::string text;
};
Answer answer_to(const std::string& name, const std::vector<Setting>& settings) {
  Answer answer;
  std::string path = SLUICE_CONFIG_CORPUS;
  path += "/";
  path += name;
  path += ".json";
  try {
    for (const std::string& note : load_train_config(path, of_program(1, settings)).notes)
      answer.text += note + "\n";
    answer.runs = true;
  } catch (const ConfigError& error) {
    answer.problems = error.problems().size();
    answer.text = error.what();
  }
  return answer;
}

TEST(ConfigCorpus, EveryFileGetsItsVerdictAndItsWords) {
  for (const Expected& expected : kCorpus) {
    const Answer bare = answer_to(expected.file, {});
    EXPECT_EQ(bare.runs, expected.runs) << expected.file << "\n" << bare.text;
    EXPECT_THAT(bare.text, HasSubstr(expected.words)) << expected.file;
    EXPECT_EQ(bare.problems, expected.runs ? 0U : 1U) << expected.file << "\n" << bare.text;
    const Answer flagged = answer_to(expected.file, three_flags());
    EXPECT_EQ(flagged.runs, expected.runs_with_flags) << expected.file << "\n" << flagged.text;
  }
}

TEST(ConfigCorpus, IsTheFolder) {
  std::set<std::string> listed, found;
  for (const Expected& expected : kCorpus) listed.insert(expected.file);
  for (const auto& entry : std::filesystem::directory_iterator(SLUICE_CONFIG_CORPUS))
    found.insert(entry.path().stem());
  EXPECT_EQ(listed, found);
}

}  // namespace
}  // namespace sluice::config::test
