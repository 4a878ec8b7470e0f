#include "sluice/config/model_config.hpp"

#include "check/checker.hpp"
#include "sluice/base/text.hpp"

namespace sluice::config {

namespace {

struct ActivationName {
  std::string_view name;
  Activation activation;
};
constexpr ActivationName kActivations[] = {{"gelu_new", Activation::gelu_new},
                                           {"gelu_pytorch_tanh", Activation::gelu_new},
                                           {"gelu", Activation::gelu},
                                           {"relu", Activation::relu}};

void read_model_type(Checker& checker) {
  if (checker.wrong("model_type")) return;
  std::string type;
  checker.read("model_type", type);
  if (type == "gpt2") return;
  checker.add_problem("model_type", type.empty() ? "required; add \"model_type\": \"gpt2\""
                                                 : "only gpt2 is built into the program, found " +
                                                       quoted(type) +
                                                       "; other models train from Python: "
                                                       "sluice.initialize, docs/python.md");
  // The keys of another family say nothing more.
  if (!type.empty()) checker.keep_problems_of("model_type");
}

void read_activation(Checker& checker, Activation& activation) {
  std::string name(name_of(activation));
  checker.read("activation_function", name);
  std::vector<std::string_view> names;
  for (const ActivationName& known : kActivations) {
    if (known.name == name) {
      activation = known.activation;
      return;
    }
    names.push_back(known.name);
  }
  checker.add_problem("activation_function", quoted(name) + " is not supported" +
                                                 did_you_mean(nearest_name(name, names)) + " (" +
                                                 join(names, ", ") + ")");
}

void check_sizes(Checker& checker, const ModelConfig& model) {
  const bool sizes_wrong = checker.wrong("n_embd") || checker.wrong("n_head");
  if (!sizes_wrong && model.n_embd % model.n_head != 0) {
    checker.add_problem(checker.given("n_head") ? "n_head" : "n_embd",
                        "n_embd must be a multiple of n_head: " + std::to_string(model.n_embd) +
                            " is not one of " + std::to_string(model.n_head));
  }
  std::int64_t n_ctx = model.n_positions;
  checker.read("n_ctx", n_ctx);
  if (n_ctx != model.n_positions && !checker.wrong("n_positions")) {
    checker.add_problem("n_ctx", "must equal n_positions: " + std::to_string(n_ctx) + " is not " +
                                     std::to_string(model.n_positions));
  }
}

}  // namespace

std::string_view name_of(Activation activation) {
  switch (activation) {
    case Activation::gelu_new:
      return "gelu_new";
    case Activation::gelu:
      return "gelu";
    case Activation::relu:
      return "relu";
  }
  return "";
}

std::string canonical_model_text(const ModelConfig& model) {
  // 17 digits: equal text exactly for equal doubles.
  return "gpt2 n_layer=" + std::to_string(model.n_layer) +
         " n_head=" + std::to_string(model.n_head) + " n_embd=" + std::to_string(model.n_embd) +
         " n_inner=" + std::to_string(model.inner_size()) +
         " n_positions=" + std::to_string(model.n_positions) +
         " vocab_size=" + std::to_string(model.vocab_size) +
         " layer_norm_epsilon=" + format_number("%.17g", model.layer_norm_epsilon) +
         " activation_function=" + std::string(name_of(model.activation_function)) +
         " tie_word_embeddings=" + (model.tie_word_embeddings ? "true" : "false");
}

ModelConfig parse_model_config(std::string_view text, const std::string& shown_path) {
  const JsonDocument document(text, shown_path);
  const Schema schema{.keys = model_key_table()};
  Checker checker(document, schema);
  ModelConfig model;
  read_model_type(checker);
  checker.read("n_layer", model.n_layer);
  checker.read("n_head", model.n_head);
  checker.read("n_embd", model.n_embd);
  checker.read("n_positions", model.n_positions);
  checker.read("vocab_size", model.vocab_size);
  checker.read("n_inner", model.n_inner);
  checker.read("layer_norm_epsilon", model.layer_norm_epsilon);
  checker.read("initializer_range", model.initializer_range);
  checker.read("tie_word_embeddings", model.tie_word_embeddings);
  checker.read("embd_pdrop", model.embd_pdrop);
  checker.read("attn_pdrop", model.attn_pdrop);
  checker.read("resid_pdrop", model.resid_pdrop);
  if (!checker.wrong("model_type")) {
    read_activation(checker, model.activation_function);
    check_sizes(checker, model);
  }
  checker.throw_if_wrong();
  return model;
}

ModelConfig load_model_config(const std::string& path) {
  return parse_model_config(read_config_file(path), path);
}

}  // namespace sluice::config
