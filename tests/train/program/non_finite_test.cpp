// Every row of the table of non-finite values in docs/architecture.md, by the program.

#include <gtest/gtest.h>
#include <json/json.h>

#include <cstring>
#include <functional>

#include "train_support.hpp"

namespace sluice::test {
namespace {

// An untied head, so that the last unit's gradients are its own. A small epsilon of the layer norms
// lets tiny hidden states multiply the gradient that goes back through them by 1e18.
constexpr const char* kModel =
    R"({"model_type": "gpt2", "n_layer": 3, "n_embd": 64, "n_head": 4, "n_positions": 32,
        "vocab_size": 256, "tie_word_embeddings": false, "layer_norm_epsilon": 1e-36})";

// An fp32 safetensors file in memory.
class Weights {
 public:
  explicit Weights(std::string text) : text_(std::move(text)) {
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, text_.data(), sizeof(header_bytes));
    begin_ = sizeof(header_bytes) + header_bytes;
    std::istringstream(text_.substr(sizeof(header_bytes), header_bytes)) >> header_;
  }
  // Sets every element of the tensors whose name contains `part` to value(its number).
  void fill(const std::string& part, const std::function<float(std::size_t)>& value) {
    for (const std::string& name : header_.getMemberNames()) {
      if (name.find(part) == std::string::npos) continue;
      const Json::Value& range = header_[name]["data_offsets"];
      for (std::uint64_t at = range[0].asUInt64(); at < range[1].asUInt64(); at += 4) {
        const float element = value((at - range[0].asUInt64()) / 4);
        std::memcpy(text_.data() + begin_ + at, &element, sizeof(element));
      }
    }
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::uint64_t begin_ = 0;
  Json::Value header_;
};

float sign(std::size_t i) {
  return i % 2 == 0 ? 1.0F : -1.0F;
}

// Blocks that add nothing: the hidden state is the embedding everywhere.
void pass_through(Weights& weights) {
  weights.fill("c_proj", [](std::size_t) { return 0.0F; });
  weights.fill("wpe", [](std::size_t) { return 0.0F; });
}

void make_loss_infinite(Weights& weights) {
  weights.fill("lm_head", [](std::size_t i) { return 3e38F * sign(i / 64); });
}

// The head's weights meet a layer norm of 0, so the loss is ln 256. The gradient of that layer norm
// is the sum over all tokens of the mean of the weights less the target's: 5.9e38.
void make_last_gradient_infinite(Weights& weights, const std::string& data) {
  pass_through(weights);
  weights.fill("wte", [](std::size_t i) { return 0.02F * sign(i); });
  weights.fill("ln_f", [](std::size_t) { return 0.0F; });
  weights.fill("lm_head", [&](std::size_t i) {
    return data.find(static_cast<char>(i / 64)) == std::string::npos ? 3.3e38F : -3.3e38F;
  });
}

// The last layer norm divides the gradient, of about 1e22, by 1e-18.
void make_other_gradient_infinite(Weights& weights) {
  pass_through(weights);
  weights.fill("wte", [](std::size_t i) { return 1e-37F * sign(i * 7 / 3); });
  weights.fill("lm_head", [](std::size_t i) { return 1e25F * sign(i * 5 / 3); });
}

enum class Where { loss, last_gradient, other_gradient };

struct Case {
  bool bf16;
  double clipping;
  bool stop;
  Where where;
};

class NonFinite : public ::testing::TestWithParam<Case> {
 protected:
  NonFinite() {
    write_file(folder_.model(), kModel);
    setup_.bf16 = GetParam().bf16;
    setup_.clipping = GetParam().clipping;
    folder_.set(setup_);
    EXPECT_EQ(folder_.train("first", 1).exit_code, 0);
    Weights weights(exported(folder_, folder_.swap()));
    switch (GetParam().where) {
      case Where::loss:
        make_loss_infinite(weights);
        break;
      case Where::last_gradient:
        make_last_gradient_infinite(weights, file_text(folder_.data()));
        break;
      case Where::other_gradient:
        make_other_gradient_infinite(weights);
        break;
    }
    init_ = weights.text();
    write_file(folder_.path("init.safetensors"), init_);
    folder_.clear_swap();
    if (GetParam().stop) setup_.sluice_keys = "\"non_finite\": \"stop\", ";
    folder_.set(setup_);
  }
  std::string found() const {
    if (GetParam().where == Where::loss) return "the loss is not finite";
    return GetParam().where == Where::last_gradient ? "the gradient of transformer.ln_f."
                                                    : "the gradient of transformer.h.2.";
  }
  TrainFolder folder_;
  TrainSetup setup_;
  std::string init_;
};

TEST_P(NonFinite, SkipsTheStepOrEndsTheRunAsTheTableSays) {
  const ProgramResult result =
      folder_.train("report", 2, {"--init", folder_.path("init.safetensors")});
  const bool updated = GetParam().clipping == 0 && GetParam().where == Where::other_gradient;
  if (updated) {
    expect_refused(result, 1,
                   {found(), "later layers are already updated", "set gradient_clipping",
                    "Nothing was committed before"});
    return;
  }
  if (GetParam().stop) {
    expect_refused(result, 1,
                   {"step 1: " + found(), "training stops before this update", "non_finite"});
    return;
  }
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("step 1: " + found()), std::string::npos) << result.err;
  EXPECT_EQ(column(folder_, "report", "skipped"), (std::vector<std::string>{"true", "true"}));
  EXPECT_NE(result.out.find("; 2 steps of this run updated nothing"), std::string::npos)
      << result.out;
  EXPECT_EQ(result.out.find("-nan"), std::string::npos) << result.out;
  const std::string report = folder_.report_text("report");
  EXPECT_NE(report.find("\"skipped_steps\":2"), std::string::npos) << report;
  EXPECT_NE(report.find("2 of 2 steps updated nothing, since gradients were not finite"),
            std::string::npos)
      << report;
  EXPECT_TRUE(exported(folder_, folder_.swap()) == init_) << "weights have changed";
}

std::vector<Case> every_row() {
  std::vector<Case> rows;
  for (const bool bf16 : {true, false}) {
    for (const double clipping : {0.0, 1.0}) {
      for (const bool stop : {false, true}) {
        for (const Where where : {Where::loss, Where::last_gradient, Where::other_gradient})
          rows.push_back({bf16, clipping, stop, where});
      }
    }
  }
  return rows;
}

std::string name_of_row(const ::testing::TestParamInfo<Case>& row) {
  const char* const kWhere[] = {"Loss", "LastGradient", "OtherGradient"};
  return std::string(row.param.bf16 ? "Bf16" : "Fp32") +
         (row.param.clipping > 0 ? "Clipping" : "NoClipping") + (row.param.stop ? "Stop" : "Skip") +
         kWhere[static_cast<int>(row.param.where)];
}

INSTANTIATE_TEST_SUITE_P(Rows, NonFinite, ::testing::ValuesIn(every_row()), name_of_row);

// The factor of the decay is 1 - 1e20, which takes the head's weights beyond fp32. A layer norm of
// 0 keeps the loss finite.
TEST(NonFiniteUpdate, OfALearningRateThatIsTooLargeEndsTheRunBeforeACommit) {
  TrainFolder folder;
  write_file(folder.model(), kModel);
  folder.set({});
  ASSERT_EQ(folder.train("first", 1).exit_code, 0);
  Weights weights(exported(folder, folder.swap()));
  weights.fill("ln_f", [](std::size_t) { return 0.0F; });
  weights.fill("lm_head", [](std::size_t i) { return 1e19F * sign(i / 64); });
  write_file(folder.path("init.safetensors"), weights.text());
  folder.clear_swap();
  std::string text = config_json({}, folder.swap());
  const auto scheduler = text.find(", \"scheduler\"");
  text.erase(scheduler, text.find(", \"gradient_clipping\"") - scheduler);
  const std::string lr = "\"lr\": 1e-3, \"weight_decay\": 0.1";
  text.replace(text.find(lr), lr.size(), "\"lr\": 1e10, \"weight_decay\": 1e10");
  write_file(folder.config(), text);
  expect_refused(folder.train("report", 3, {"--init", folder.path("init.safetensors")}), 1,
                 {"step 1: the update of lm_head.weight (element 0 of 16,384)",
                  "a learning rate that is too large, 1e+10", "Nothing was committed before"});
  EXPECT_FALSE(std::filesystem::exists(folder.swap() + "/manifest.json"));
}

// In fp16 updates always wait for all gradients. A static scale of 1e30 overflows in every unit.
TEST(NonFiniteFp16, SkipsOrStopsWithAndWithoutClipping) {
  for (const double clipping : {0.0, 1.0}) {
    for (const bool stop : {false, true}) {
      SCOPED_TRACE(std::to_string(clipping) + (stop ? " stop" : " skip"));
      TrainFolder folder;
      TrainSetup setup;
      setup.bf16 = false;
      setup.clipping = clipping;
      setup.more_keys = R"("fp16": {"enabled": true, "loss_scale": 1e30}, )";
      if (stop) setup.sluice_keys = "\"non_finite\": \"stop\", ";
      folder.set(setup);
      const ProgramResult result = folder.train("report", 2);
      if (stop) {
        expect_refused(result, 1, {"step 1: the gradient of ", "is not finite, and"});
        continue;
      }
      EXPECT_EQ(result.exit_code, 0) << result.err;
      EXPECT_EQ(column(folder, "report", "skipped"), (std::vector<std::string>{"true", "true"}));
    }
  }
}

// The last commit of such a run becomes the state to resume from, as at any other orderly end.
TEST(NonFiniteFp16, AStoppedRunWithOneSlotIsCommitted) {
  TrainFolder folder;
  TrainSetup setup;
  setup.bf16 = false;
  // Rates that rise until the weights leave fp16.
  setup.more_keys = R"("fp16": {"enabled": true, "loss_scale": 1}, )";
  setup.scheduler =
      R"({"type": "WarmupLR", "params": {"warmup_min_lr": 1e-4, "warmup_max_lr": 300, )"
      R"("warmup_num_steps": 8, "warmup_type": "linear"}})";
  setup.sluice_keys = R"("non_finite": "stop", "durability": "none", )";
  folder.set(setup);
  expect_refused(folder.train("report", 12), 1,
                 {"is not finite, and", "training stops", "training stopped after step ",
                  " is committed. Once the cause is mended"});
  const auto committed = column(folder, "report", "step");
  ASSERT_FALSE(committed.empty());
  const ProgramResult verified = run_sluice({"nvme", "verify", folder.swap()});
  EXPECT_EQ(verified.exit_code, 0) << verified.err;
  EXPECT_NE(verified.out.find("step " + committed.back()), std::string::npos) << verified.out;
}

}  // namespace
}  // namespace sluice::test
