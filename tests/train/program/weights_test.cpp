// Weights out and in again: export, --init, generate.

#include <gtest/gtest.h>
#include <json/json.h>

#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

#include "train_support.hpp"

namespace sluice::test {
namespace {

double eval_loss(const TrainFolder& folder, const std::string& report) {
  const Json::Value loss = report_of(folder, report)["eval_loss"];
  EXPECT_TRUE(loss.isDouble()) << loss;
  return loss.asDouble();
}

TEST(Weights, ExportedAndReadInAgainGiveTheSameEvaluation) {
  TrainFolder folder;
  folder.set({});
  const std::vector<std::string> evaluation = {"--eval-fraction", "0.1"};
  ASSERT_EQ(folder.train("trained", 10, evaluation).exit_code, 0);
  const std::string weights = folder.path("weights.safetensors");
  ASSERT_EQ(run_sluice({"export", folder.swap(), "--out", weights}).exit_code, 0);
  folder.clear_swap();
  const ProgramResult evaluated =
      folder.train("evaluated", 0, {"--eval-fraction", "0.1", "--init", weights});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_EQ(eval_loss(folder, "evaluated"), eval_loss(folder, "trained"));

  const std::vector<std::string> generate = {
      "generate",         "--model", folder.model(), "--prompt", "the step",
      "--max-new-tokens", "40",      "--seed",       "3",        "--weights"};
  std::vector<std::string> from_file = generate;
  from_file.push_back(weights);
  const ProgramResult text = run_sluice(from_file);
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(text.out.rfind("the step", 0), 0U) << text.out;
  EXPECT_GE(text.out.size(), 8 + 40U);
  // So small a temperature leaves the likeliest token alone.
  std::vector<std::string> coldest = from_file;
  coldest.insert(coldest.end(), {"--temperature", "0"});
  const std::string likeliest = run_sluice(coldest).out;
  for (const char* temperature : {"1e-300", "1e-308", "5e-324"}) {
    coldest.back() = temperature;
    EXPECT_EQ(run_sluice(coldest).out, likeliest) << temperature;
  }
}

// Files of 40 KB at most, by their index and by their folder, in place of one file.
TEST(Weights, InSeveralFilesAreTheSame) {
  TrainFolder folder;
  folder.set({});
  ASSERT_EQ(folder.train("trained", 5, {"--eval-fraction", "0.1"}).exit_code, 0);
  std::filesystem::create_directory(folder.path("shards"));
  const std::string one = folder.path("one.safetensors");
  const std::string out = folder.path("shards/model.safetensors");
  ASSERT_EQ(run_sluice({"export", folder.swap(), "--out", one}).exit_code, 0);
  ASSERT_EQ(
      run_sluice({"export", folder.swap(), "--out", out, "--max-shard-size", "40KB"}).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(out));
  const auto generated = [&](const std::string& weights) {
    const ProgramResult result =
        run_sluice({"generate", "--model", folder.model(), "--prompt", "the step",
                    "--max-new-tokens", "40", "--seed", "3", "--weights", weights});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string expected = generated(one);
  for (const std::string& weights : {out + ".index.json", folder.path("shards")}) {
    SCOPED_TRACE(weights);
    folder.clear_swap();
    const ProgramResult evaluated =
        folder.train("evaluated", 0, {"--eval-fraction", "0.1", "--init", weights});
    ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
    EXPECT_EQ(eval_loss(folder, "evaluated"), eval_loss(folder, "trained"));
    EXPECT_EQ(generated(weights), expected);
  }
  folder.clear_swap();
  expect_refused(folder.train("report", 1, {"--init", folder.swap()}), 2,
                 {folder.swap(), "holds neither model.safetensors nor"});
}

TEST(Weights, InTheFolderOfACheckpointOutliveIt) {
  TrainFolder folder;
  TrainSetup setup;
  setup.optimizer_device = setup.param_device = "cpu";
  setup.sluice_keys = "\"checkpoint_dir\": \"" + folder.checkpoints() +
                      "\", \"checkpoint_every\": 1, \"keep\": 1, ";
  folder.set(setup);
  ASSERT_EQ(folder.train("report", 1).exit_code, 0);
  const std::string first = folder.checkpoints() + "/step-00000001";
  std::filesystem::create_directory(first + "/hf");
  const std::string weights = first + "/hf/model.safetensors";
  ASSERT_EQ(run_sluice({"export", first, "--out", weights}).exit_code, 0);
  const ProgramResult second = folder.train("report", 3, {"--resume"});
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_NE(second.err.find(first + ": the old checkpoint is removed, and the folder stays: hf"),
            std::string::npos)
      << second.err;
  EXPECT_EQ(folder.files("checkpoints/step-00000001"),
            (std::vector<std::string>{first + "/hf", weights}));
  EXPECT_FALSE(std::filesystem::exists(folder.checkpoints() + "/step-00000002"));
  const ProgramResult third = folder.train("report", 4, {"--resume"});
  EXPECT_EQ(third.exit_code, 0) << third.err;
  EXPECT_EQ(third.err.find("step-00000001"), std::string::npos) << third.err;
}

TEST(Weights, OfAnotherShapeAreRefusedByName) {
  TrainFolder folder;
  folder.set({});
  ASSERT_EQ(folder.train("trained", 1).exit_code, 0);
  const std::string weights = folder.path("weights.safetensors");
  ASSERT_EQ(run_sluice({"export", folder.swap(), "--out", weights}).exit_code, 0);
  folder.clear_swap();
  write_file(
      folder.model(),
      R"({"model_type": "gpt2", "n_layer": 3, "n_embd": 32, "n_head": 4, "n_positions": 32, "vocab_size": 256})");
  const ProgramResult refused = folder.train("report", 1, {"--init", weights});
  EXPECT_EQ(refused.exit_code, 4) << refused.err;
  EXPECT_NE(refused.err.find("transformer.wte.weight"), std::string::npos) << refused.err;
}

// A file of weights of the model in a folder that it makes.
std::string exported_weights(TrainFolder& folder) {
  folder.set({});
  EXPECT_EQ(folder.train("trained", 1).exit_code, 0);
  std::string weights = folder.path("weights.safetensors");
  EXPECT_EQ(run_sluice({"export", folder.swap(), "--out", weights}).exit_code, 0);
  return weights;
}

ProgramResult generate_with(const TrainFolder& folder, const std::string& weights) {
  return run_sluice({"generate", "--model", folder.model(), "--prompt", "the step",
                     "--max-new-tokens", "5", "--weights", weights});
}

TEST(Weights, ThatAreNotFiniteGenerateNothing) {
  TrainFolder folder;
  const std::string weights = exported_weights(folder);
  std::string text = file_text(weights);
  const auto fill = [&](char byte) {
    text.replace(text.size() / 2, text.size() / 2, text.size() / 2, byte);
    write_file(weights, text);
    return generate_with(folder, weights);
  };
  const ProgramResult nan = fill('\xFF');
  expect_refused(nan, 4, {weights, "tensor transformer.", " has the value ", "non-finite"});
  EXPECT_EQ(nan.out, "");
  const ProgramResult huge = fill('\x7F');  // 3.4e38
  expect_refused(huge, 4, {weights, "the model's output is not finite"});
  EXPECT_EQ(huge.out, "");
}

// One NaN in the middle of the file, in each type; and a value that only fp16 makes infinite.
TEST(Weights, WithOneNonFiniteValueStartNoRun) {
  TrainFolder folder;
  exported_weights(folder);
  const std::string weights = folder.path("typed.safetensors");
  for (const std::string type : {"fp32", "bf16", "fp16"}) {
    SCOPED_TRACE(type);
    folder.set({});
    ASSERT_EQ(run_sluice({"export", folder.swap(), "--out", weights, "--dtype", type}).exit_code,
              0);
    const std::string good = file_text(weights);
    const std::size_t bytes = type == "fp32" ? 4 : 2;
    std::string bad = good;
    const std::size_t at = bad.size() - bytes * ((bad.size() / 2) / bytes);
    bad.replace(at, bytes, bytes, '\x7F');
    bad[at + bytes - 2] = '\xFF';  // 0x7FFF: NaN in every type
    write_file(weights, bad);
    const std::string swap = folder.path("other-" + type);
    std::filesystem::create_directory(swap);
    write_file(folder.config(), config_json({}, swap));
    expect_refused(folder.train("report", 1, {"--init", weights}), 4,
                   {weights, "tensor ", "nan at element ", "non-finite"});
    EXPECT_FALSE(std::filesystem::exists(swap + "/manifest.json"));
    write_file(weights, good);
    EXPECT_EQ(folder.train("report", 1, {"--init", weights}).exit_code, 0);
  }
}

TEST(Weights, OfAnotherModelAreNamedInTenLines) {
  TrainFolder folder;
  const std::string weights = exported_weights(folder);
  write_file(folder.model(), R"({"model_type": "gpt2", "n_layer": 8, "n_embd": 32, "n_head": 4,
                                 "n_positions": 32, "vocab_size": 256})");
  const ProgramResult result = generate_with(folder, weights);
  expect_refused(result, 4, {"transformer.wte.weight is (256, 64)", "  ... and "});
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1 + 10 + 1) << result.err;
  EXPECT_EQ(result.out, "") << "no prompt before the weights have been checked";
}

TEST(Weights, OfADataTypeThatIsNotReadAreNotCalledMissing) {
  TrainFolder folder;
  const std::string weights = exported_weights(folder);
  std::string text = file_text(weights);
  const auto at = text.find("F32", text.find("transformer.wpe.weight"));
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 3, "I32");
  write_file(weights, text);
  expect_refused(generate_with(folder, weights), 4,
                 {"transformer.wpe.weight (32, 64) has dtype I32, which is not supported"});
}

// First byte and count of a tensor of a safetensors file.
std::pair<std::size_t, std::size_t> place_of(const std::string& file, const std::string& name) {
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  Json::Value header;
  std::istringstream(file.substr(sizeof(header_bytes), header_bytes)) >> header;
  const Json::Value& range = header[name]["data_offsets"];
  return {sizeof(header_bytes) + header_bytes + range[0].asUInt64(),
          range[1].asUInt64() - range[0].asUInt64()};
}

TEST(Weights, WithAHeadOfTheirOwnAreRefusedByATiedModel) {
  TrainFolder folder;
  const std::string tied = file_text(folder.model());
  std::string untied = tied;
  untied.insert(untied.rfind('}'), ", \"tie_word_embeddings\": false");
  write_file(folder.model(), untied);
  const std::string weights = exported_weights(folder);
  folder.clear_swap();
  write_file(folder.model(), tied);
  const std::vector<std::string> said = {weights, "lm_head.weight", "is not equal to wte.weight",
                                         "tie_word_embeddings"};
  expect_refused(folder.train("report", 1, {"--init", weights}), 4, said);
  expect_refused(generate_with(folder, weights), 4, said);

  // A copy of the embedding, as some tools write it.
  std::string text = file_text(weights);
  const auto [from, bytes] = place_of(text, "transformer.wte.weight");
  text.replace(place_of(text, "lm_head.weight").first, bytes, text.substr(from, bytes));
  write_file(weights, text);
  const ProgramResult copied = generate_with(folder, weights);
  EXPECT_EQ(copied.exit_code, 0) << copied.err;
}

TEST(Weights, ThatOnlyHaveTheNameOfAMaskAreRefused) {
  TrainFolder folder;
  const std::string weights = exported_weights(folder);
  std::string text = file_text(weights);
  // The bias of a projection by the name of a mask: one missing, one unknown.
  const std::string name = "h.0.attn.c_attn.bias";
  const auto at = text.find(name);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, name.size(), "h.00000000.attn.bias");
  write_file(weights, text);
  expect_refused(generate_with(folder, weights), 4,
                 {"h.00000000.attn.bias (192) belongs to no parameter"});
}

TEST(Weights, TrainingLowersTheLossOfTextWithStructure) {
  TrainFolder folder;
  folder.set({});
  ASSERT_EQ(folder.train("report", 60, {"--eval-fraction", "0.1"}).exit_code, 0);
  const std::vector<std::string> losses = column(folder, "report", "loss");
  // ln 256 = 5.55 is what knowing nothing costs; the text has 12 words of equal chance, about 0.5
  // nats per byte.
  EXPECT_GT(std::stod(losses.front()), 5.0);
  EXPECT_LT(std::stod(losses.back()), 3.0);
  EXPECT_LT(eval_loss(folder, "report"), 3.0);
}

}  // namespace
}  // namespace sluice::test
