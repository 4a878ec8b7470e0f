#include "sluice/config/model_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config_testing.hpp"
#include "sluice/config/key_table.hpp"

namespace sluice::config::test {
namespace {

using testing::HasSubstr;

ModelConfig parse_model(const JsonText& json) {
  return parse_model_config(json.text(), "config.json");
}
JsonText gpt2() {
  return JsonText().set("model_type", "\"gpt2\"");
}

// As Hugging Face publishes it for the smallest GPT-2, less label maps.
constexpr const char* kGpt2Small = R"({
  "activation_function": "gelu_new",
  "architectures": ["GPT2LMHeadModel"],
  "attn_pdrop": 0.1,
  "bos_token_id": 50256,
  "embd_pdrop": 0.1,
  "eos_token_id": 50256,
  "initializer_range": 0.02,
  "layer_norm_epsilon": 1e-05,
  "model_type": "gpt2",
  "n_ctx": 1024,
  "n_embd": 768,
  "n_head": 12,
  "n_layer": 12,
  "n_positions": 1024,
  "resid_pdrop": 0.1,
  "summary_activation": null,
  "summary_first_dropout": 0.1,
  "summary_proj_to_labels": true,
  "summary_type": "cls_index",
  "summary_use_proj": true,
  "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}},
  "vocab_size": 50257
})";

TEST(ModelConfig, ReadsAPublishedFile) {
  const ModelConfig model = parse_model_config(kGpt2Small, "config.json");
  EXPECT_EQ(model.n_layer, 12);
  EXPECT_EQ(model.attn_pdrop, 0.1);
  EXPECT_EQ(model.inner_size(), 3072);
  EXPECT_EQ(model.head_size(), 64);
}

TEST(ModelConfig, AbsentDropoutMeansNone) {
  const ModelConfig model = parse_model(gpt2());
  EXPECT_EQ(model.embd_pdrop, 0);
  EXPECT_EQ(model.attn_pdrop, 0);
  EXPECT_EQ(model.resid_pdrop, 0);
}

TEST(ModelConfig, EveryHonouredKeyIsRead) {
  const ModelConfig model = parse_model(gpt2()
                                            .set("n_layer", "3")
                                            .set("n_head", "4")
                                            .set("n_embd", "20")
                                            .set("n_positions", "7")
                                            .set("vocab_size", "11")
                                            .set("n_inner", "13")
                                            .set("layer_norm_epsilon", "0.5")
                                            .set("initializer_range", "0.25")
                                            .set("tie_word_embeddings", "false")
                                            .set("activation_function", "\"relu\"")
                                            .set("embd_pdrop", "0.1")
                                            .set("attn_pdrop", "0.2")
                                            .set("resid_pdrop", "0.3"));
  EXPECT_EQ(canonical_model_text(model),
            "gpt2 n_layer=3 n_head=4 n_embd=20 n_inner=13 n_positions=7 vocab_size=11 "
            "layer_norm_epsilon=0.5 activation_function=relu tie_word_embeddings=false");
  EXPECT_EQ(model.initializer_range, 0.25);
  EXPECT_EQ(model.embd_pdrop, 0.1);
  EXPECT_EQ(model.attn_pdrop, 0.2);
  EXPECT_EQ(model.resid_pdrop, 0.3);
}

TEST(ModelConfig, AcceptsTheGenericNamesOfSizes) {
  const ModelConfig model = parse_model(gpt2()
                                            .set("hidden_size", "20")
                                            .set("num_attention_heads", "5")
                                            .set("num_hidden_layers", "2")
                                            .set("max_position_embeddings", "9"));
  EXPECT_EQ(model.n_embd, 20);
  EXPECT_EQ(model.n_head, 5);
  EXPECT_EQ(model.n_layer, 2);
  EXPECT_EQ(model.n_positions, 9);
}

TEST(ModelConfig, NamesOfTheTanhGeluAreOneActivation) {
  const auto activation = [](const char* name) {
    return parse_model(gpt2().set("activation_function", name)).activation_function;
  };
  EXPECT_EQ(activation("\"gelu_new\""), Activation::gelu_new);
  EXPECT_EQ(activation("\"gelu_pytorch_tanh\""), Activation::gelu_new);
  EXPECT_EQ(activation("\"gelu\""), Activation::gelu);
  EXPECT_EQ(activation("\"relu\""), Activation::relu);
}

TEST(ModelConfig, ReportsAllMistakesAtOnceWithPositions) {
  const auto problems = model_problems_of(R"({
  "model_type": "gpt2",
  "n_layer": 0,
  "n_head": 5, "n_ctx": 3,
  "n_embed": 64,
  "attn_pdrop": 1.0,
  "activation_function": "gelu_mew",
  "scale_attn_weights": false,
  "vocab_size": 1e12,
  "pruned_heads": {"0": [1]}
})");
  EXPECT_EQ(shown(problems),
            "3:3: n_layer: expected integer in [1, 10000], found 0 (number)\n"
            "4:3: n_head: n_embd must be a multiple of n_head: 768 is not one of 5\n"
            "4:16: n_ctx: must equal n_positions: 3 is not 1024\n"
            "5:3: n_embed: unknown key; did you mean \"n_embd\"?\n"
            "6:3: attn_pdrop: expected number in [0, 1), found 1.0 (number)\n"
            "7:3: activation_function: \"gelu_mew\" is not supported; did you mean \"gelu_new\"? "
            "(gelu_new, gelu_pytorch_tanh, gelu, relu)\n"
            "8:3: scale_attn_weights: not supported yet; only true is accepted, found false "
            "(bool)\n"
            "9:3: vocab_size: expected integer in [1, 16777216], found 1e12 (number)\n"
            "10:3: pruned_heads: not supported yet; only a section that is empty or switched off "
            "is accepted\n");
}

TEST(ModelConfig, NamesOfOtherFamiliesLeadToThoseHere) {
  EXPECT_EQ(shown(model_problems_of(R"({"model_type": "gpt2", "hidden_act": "gelu",
"intermediate_size": 3072, "d_model": 768})")),
            "1:24: hidden_act: unknown key; did you mean \"activation_function\"?\n"
            "2:1: intermediate_size: unknown key; did you mean \"n_inner\"?\n"
            "2:28: d_model: unknown key; did you mean \"n_embd\"?\n");
}

TEST(ModelConfig, OfAnotherFamilyIsOneProblem) {
  EXPECT_EQ(shown(model_problems_of(R"({
  "model_type": "llama", "hidden_act": "silu", "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
  "num_key_value_heads": 8, "num_attention_heads": 5, "intermediate_size": 11008
})")),
            "2:3: model_type: only gpt2 is built into the program, found \"llama\"; other models "
            "train from Python: sluice.initialize, docs/python.md\n");
}

TEST(ModelConfig, RequiresAModelType) {
  EXPECT_THAT(shown(model_problems_of("{}")), HasSubstr("model_type: required"));
}

TEST(ModelConfig, CanonicalTextTellsModelsApartAndIgnoresDropout) {
  const ModelConfig base;
  ModelConfig dropout = base;
  dropout.attn_pdrop = 0.5;
  dropout.initializer_range = 1;
  dropout.n_inner = 4 * 768;
  EXPECT_EQ(canonical_model_text(dropout), canonical_model_text(base));
  ModelConfig epsilon = base;
  epsilon.layer_norm_epsilon = std::nextafter(1e-5, 1.0);
  EXPECT_NE(canonical_model_text(epsilon), canonical_model_text(base));
  ModelConfig heads = base;
  heads.n_head = 6;
  EXPECT_NE(canonical_model_text(heads), canonical_model_text(base));
}

TEST(ModelConfig, AnAbsentFileIsNamed) {
  EXPECT_THROW(load_model_config("/nonexistent/config.json"), InvalidArgument);
}

}  // namespace
}  // namespace sluice::config::test
