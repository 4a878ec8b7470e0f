#include "sluice/models/gpt2.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "gpt2_functions.hpp"
#include "sluice/base/error.hpp"

namespace sluice::models {
namespace {

using torch::Tensor;

class Embedding final : public UnitModule {
 public:
  Embedding(const config::ModelConfig& model, const torch::TensorOptions& kind)
      : dropout_(model.embd_pdrop),
        wte_(declare("wte.weight", kind)),
        wpe_(declare("wpe.weight", kind)) {}

  Tensor forward(const Tensor& tokens, const DropoutKey& key) override {
    check_length(tokens, 0);
    return dropout(embed(tokens, wte_, wpe_, 0), dropout_, key, 0, 0);
  }

  Tensor forward_cached(const Tensor& tokens, std::int64_t position) override {
    check_length(tokens, position);
    return embed(tokens, wte_, wpe_, position);
  }

 private:
  void check_length(const Tensor& tokens, std::int64_t position) const {
    SLUICE_CHECK(position + tokens.size(1) <= wpe_.size(0),
                 "tokens up to position " + std::to_string(position + tokens.size(1)) +
                     ", the model has n_positions " + std::to_string(wpe_.size(0)));
  }

  const double dropout_;
  const Tensor wte_;  // (V, C)
  const Tensor wpe_;  // (n_positions, C)
};

// ln_1, causal attention, residual; ln_2, two-layer network, residual.
class Block final : public UnitModule {
 public:
  Block(const config::ModelConfig& model, std::int64_t unit, const torch::TensorOptions& kind)
      : model_(model),
        unit_(unit),
        ln_1_weight_(declare("ln_1.weight", kind)),
        ln_1_bias_(declare("ln_1.bias", kind)),
        attn_weight_(declare("attn.c_attn.weight", kind)),
        attn_bias_(declare("attn.c_attn.bias", kind)),
        attn_proj_weight_(declare("attn.c_proj.weight", kind)),
        attn_proj_bias_(declare("attn.c_proj.bias", kind)),
        ln_2_weight_(declare("ln_2.weight", kind)),
        ln_2_bias_(declare("ln_2.bias", kind)),
        fc_weight_(declare("mlp.c_fc.weight", kind)),
        fc_bias_(declare("mlp.c_fc.bias", kind)),
        fc_proj_weight_(declare("mlp.c_proj.weight", kind)),
        fc_proj_bias_(declare("mlp.c_proj.bias", kind)) {}

  Tensor forward(const Tensor& x, const DropoutKey& key) override {
    const Tensor rows = x.view({-1, x.size(2)});  // (N, C): one matrix for every projection
    Tensor h = normed(rows, ln_1_weight_, ln_1_bias_);
    h = linear(h, attn_weight_, attn_bias_);  // (N, 3 * C)
    h = attended(h, x.size(0), key);
    h = linear(h, attn_proj_weight_, attn_proj_bias_);
    h = dropout(h, model_.resid_pdrop, key, unit_, kAttentionOutSite);
    return feed_forward(h.add_(rows), key).view(x.sizes());
  }

  Tensor forward_cached(const Tensor& x, std::int64_t position) override {
    const std::int64_t past = keys_.defined() ? keys_.size(2) : 0;
    SLUICE_CHECK(position == past, "token at position " + std::to_string(position) + " after " +
                                       std::to_string(past) + " cached ones");
    const Tensor rows = x.view({-1, x.size(2)});
    Tensor h = normed(rows, ln_1_weight_, ln_1_bias_);
    h = attended_cached(linear(h, attn_weight_, attn_bias_), x.size(0));
    h = linear(h, attn_proj_weight_, attn_proj_bias_);
    return feed_forward(h.add_(rows), DropoutKey{}).view(x.sizes());
  }

  void clear_cache() override {
    keys_.reset();
    values_.reset();
  }

 private:
  enum Site : std::int64_t { kAttentionSite = 0, kAttentionOutSite = 1, kFeedForwardOutSite = 2 };

  Tensor normed(const Tensor& rows, const Tensor& weight, const Tensor& bias) const {
    return torch::layer_norm(rows, {rows.size(1)}, weight, bias, model_.layer_norm_epsilon);
  }

  Tensor attended(const Tensor& qkv, std::int64_t batch, const DropoutKey& key) const {
    if (!key.training || model_.attn_pdrop == 0) return attention(qkv, batch, model_.n_head);
    return attention_with_dropout(qkv, batch, model_.n_head, model_.attn_pdrop,
                                  dropout_stream(key, unit_, kAttentionSite));
  }

  // Attention of the new tokens to all cached tokens and to the new tokens before each.
  Tensor attended_cached(const Tensor& qkv, std::int64_t batch) {
    Heads all = split_heads(qkv, batch, model_.n_head);
    const std::int64_t past = keys_.defined() ? keys_.size(2) : 0;
    keys_ = past == 0 ? all.k.contiguous() : torch::cat({keys_, all.k}, 2);
    values_ = past == 0 ? all.v.contiguous() : torch::cat({values_, all.v}, 2);
    const std::int64_t added = all.q.size(2);
    const Tensor visible =
        torch::ones({added, past + added}, qkv.options().dtype(torch::kBool)).tril_(past);
    const Tensor out = at::scaled_dot_product_attention(all.q, keys_, values_, visible);
    return out.transpose(1, 2).reshape({qkv.size(0), qkv.size(1) / 3});
  }

  // x + network(ln_2(x)); x (N, C).
  Tensor feed_forward(const Tensor& x, const DropoutKey& key) const {
    Tensor h = normed(x, ln_2_weight_, ln_2_bias_);
    h = activated(linear(h, fc_weight_, fc_bias_));
    h = linear(h, fc_proj_weight_, fc_proj_bias_);
    return dropout(h, model_.resid_pdrop, key, unit_, kFeedForwardOutSite).add_(x);
  }

  // Works in place where no gradient needs the input; the bits are equal either way.
  Tensor activated(Tensor h) const {
    if (model_.activation_function == config::Activation::relu) return h.relu_();
    const char* approximate =
        model_.activation_function == config::Activation::gelu_new ? "tanh" : "none";
    if (torch::GradMode::is_enabled() && h.requires_grad()) return at::gelu(h, approximate);
    return at::gelu_(h, approximate);
  }

  const config::ModelConfig model_;
  const std::int64_t unit_;
  const Tensor ln_1_weight_;       // (C)
  const Tensor ln_1_bias_;         // (C)
  const Tensor attn_weight_;       // (C, 3 * C)
  const Tensor attn_bias_;         // (3 * C)
  const Tensor attn_proj_weight_;  // (C, C)
  const Tensor attn_proj_bias_;    // (C)
  const Tensor ln_2_weight_;       // (C)
  const Tensor ln_2_bias_;         // (C)
  const Tensor fc_weight_;         // (C, inner)
  const Tensor fc_bias_;           // (inner)
  const Tensor fc_proj_weight_;    // (inner, C)
  const Tensor fc_proj_bias_;      // (C)
  Tensor keys_;                    // (B, H, cached tokens, D); undefined while empty
  Tensor values_;
};

// ln_f and the projection to the vocabulary: lm_head.weight, or the embedding's wte.
class Head final : public UnitModule {
 public:
  Head(const config::ModelConfig& model, const torch::TensorOptions& kind)
      : epsilon_(model.layer_norm_epsilon),
        ln_weight_(declare("ln_f.weight", kind)),
        ln_bias_(declare("ln_f.bias", kind)),
        weight_(declare(model.tie_word_embeddings ? "wte.weight" : "lm_head.weight", kind)) {}

  Tensor loss(const Tensor& x, const Tensor& targets, double scale) override {
    return projected_cross_entropy(normed(x), weight_, targets.reshape({-1}), scale);
  }

  Tensor logits(const Tensor& x) override {
    return normed(x).mm(weight_.t()).view({x.size(0), x.size(1), weight_.size(0)});
  }

 private:
  Tensor normed(const Tensor& x) const {
    const Tensor rows = x.view({-1, x.size(2)});
    return torch::layer_norm(rows, {rows.size(1)}, ln_weight_, ln_bias_, epsilon_);
  }

  const double epsilon_;
  const Tensor ln_weight_;  // (C)
  const Tensor ln_bias_;    // (C)
  const Tensor weight_;     // (V, C)
};

// Views in the order of a module's parameters: own ones of `flat`, then `borrowed`. Throws
// InvalidArgument when they do not fit the layout.
std::vector<Tensor> views_of(const zero::UnitLayout& layout, const Tensor& flat,
                             const std::vector<Tensor>& borrowed, std::size_t param_count,
                             const char* what) {
  const std::string where = std::string(what) + " of unit " + layout.name + ": ";
  SLUICE_CHECK(layout.params.size() + layout.borrowed.size() == param_count,
               where + "the layout has " + std::to_string(layout.params.size()) + " own and " +
                   std::to_string(layout.borrowed.size()) + " borrowed parameters, the module " +
                   std::to_string(param_count));
  SLUICE_CHECK(borrowed.size() == layout.borrowed.size(),
               where + std::to_string(borrowed.size()) + " borrowed views for " +
                   std::to_string(layout.borrowed.size()) + " borrowed parameters");
  SLUICE_CHECK(flat.dim() == 1 && flat.is_contiguous() &&
                   static_cast<std::uint64_t>(flat.numel()) == layout.flat_count,
               where + "a flat buffer of " + std::to_string(flat.numel()) +
                   " elements, the layout has " + std::to_string(layout.flat_count));
  std::vector<Tensor> views;
  for (const zero::ParamLayout& param : layout.params) views.push_back(view_of(param, flat));
  views.insert(views.end(), borrowed.begin(), borrowed.end());
  return views;
}

}  // namespace

Tensor UnitModule::forward(const Tensor&, const DropoutKey&) {
  throw InvalidArgument("the head has no forward; call loss or logits");
}
Tensor UnitModule::loss(const Tensor&, const Tensor&, double) {
  throw InvalidArgument("only the head computes a loss");
}
Tensor UnitModule::logits(const Tensor&) {
  throw InvalidArgument("only the head computes logits");
}
Tensor UnitModule::forward_cached(const Tensor&, std::int64_t) {
  throw InvalidArgument("the head keeps no cache; call logits");
}
void UnitModule::clear_cache() {}

Tensor UnitModule::declare(const std::string& name, const torch::TensorOptions& kind) {
  // LibTorch allows no dots in parameter names.
  std::string key = name;
  std::replace(key.begin(), key.end(), '.', '_');
  params_.push_back(register_parameter(key, torch::empty({0}, kind)));
  return params_.back();
}

void UnitModule::bind(const zero::UnitLayout& layout, const Tensor& flat,
                      const std::vector<Tensor>& borrowed) {
  const auto views = views_of(layout, flat, borrowed, params_.size(), "weights");
  for (std::size_t i = 0; i < params_.size(); ++i) {
    SLUICE_CHECK(views[i].scalar_type() == params_[i].scalar_type(),
                 "weights of unit " + layout.name + " are " +
                     std::string(torch::toString(views[i].scalar_type())) + ", the module is " +
                     std::string(torch::toString(params_[i].scalar_type())));
  }
  models::bind_params(params_, views);
}

void UnitModule::bind_gradients(const zero::UnitLayout& layout, const Tensor& flat_gradient,
                                const std::vector<Tensor>& borrowed_gradients) {
  const auto views =
      views_of(layout, flat_gradient, borrowed_gradients, params_.size(), "gradients");
  for (std::size_t i = 0; i < params_.size(); ++i) {
    SLUICE_CHECK(views[i].sizes() == params_[i].sizes() &&
                     (views[i].scalar_type() == params_[i].scalar_type() ||
                      views[i].scalar_type() == torch::kFloat32),
                 "gradients of unit " + layout.name +
                     " differ from the bound weights in shape or data type");
  }
  models::bind_gradients(params_, views);
}

void UnitModule::unbind() {
  unbind_params(params_);
}

std::vector<std::shared_ptr<UnitModule>> make_gpt2_modules(const config::ModelConfig& model,
                                                           torch::Dtype dtype,
                                                           torch::Device device) {
  const torch::TensorOptions kind = torch::TensorOptions().dtype(dtype).device(device);
  std::vector<std::shared_ptr<UnitModule>> modules;
  modules.push_back(std::make_shared<Embedding>(model, kind));
  for (std::int64_t i = 0; i < model.n_layer; ++i) {
    modules.push_back(std::make_shared<Block>(model, i + 1, kind));
  }
  modules.push_back(std::make_shared<Head>(model, kind));
  return modules;
}

}  // namespace sluice::models
