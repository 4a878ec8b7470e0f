#include "ranks/same_config.hpp"

#include <concepts>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"
#include "sluice/models/rank_commit.hpp"

namespace sluice::train {

namespace {

std::string text_of(bool value) {
  return value ? "true" : "false";
}
std::string text_of(std::string_view value) {
  return std::string(value);
}
std::string text_of(double value) {
  return shortest_number(value);
}
std::string text_of(std::integral auto value) {
  return std::to_string(value);
}
template <typename T>
requires requires(T value) {
  name_of(value);
}
std::string text_of(T value) {
  return std::string(name_of(value));
}
template <typename T>
std::string text_of(const std::optional<T>& value) {
  return value ? text_of(*value) : "not set";
}

// Keys and their values. Their order is that of this version.
class Values {
 public:
  void add(std::string_view key, const auto& value) {
    lines_ += std::string(key) + "\n" + text_of(value) + "\n";
  }
  void add(const std::string& key, double first, double second) {
    add(key + ".0", first);
    add(key + ".1", second);
  }
  const std::string& lines() const { return lines_; }

 private:
  std::string lines_;
};

void add_optimizer(Values& values, const config::TrainConfig& config) {
  const config::OptimizerConfig& optimizer = config.optimizer;
  values.add("optimizer.type", optimizer.type);
  config::OptimizerConfig::visit(optimizer, [&](const std::string& name, auto... value) {
    values.add("optimizer.params." + name, value...);
  });
  values.add("sluice.no_decay", config.groups.no_decay_of_biases_and_norms);
  values.add("sluice.master", config.sluice.master);
  values.add("sluice.moments", config.sluice.moments);
}

void add_data_types(Values& values, const config::TrainConfig& config) {
  const config::Fp16Config& fp16 = config.fp16;
  values.add("bf16.enabled", config.bf16);
  values.add("fp16.enabled", fp16.enabled);
  values.add("fp16.loss_scale", fp16.loss_scale);
  config::Fp16Config::visit_dynamic(
      fp16, [&](const std::string& name, auto value) { values.add("fp16." + name, value); });
  values.add("data_types.grad_accum_dtype", config.gradient_dtype());
}

void add_zero(Values& values, const config::ZeroConfig& zero) {
  values.add("zero_optimization.stage", zero.stage);
  values.add("zero_optimization.offload_optimizer.device", zero.offload_optimizer.device);
  values.add("zero_optimization.offload_param.device", zero.offload_param.device);
  values.add("gradient_allreduce_op", std::string_view(zero.reduction.takes_sum ? "sum" : "avg"));
  values.add("prescale_gradients", zero.reduction.prescales);
  values.add("gradient_predivide_factor", zero.reduction.predivide_factor);
  values.add("communication_data_type", zero.reduction.wire_dtype);
}

std::string lines_of(const config::TrainConfig& config) {
  Values values;
  values.add("the version of Sluice", std::string_view(SLUICE_VERSION));
  values.add("train_micro_batch_size_per_gpu", config.micro_batch_size);
  values.add("gradient_accumulation_steps", config.gradient_accumulation_steps);
  values.add("train_batch_size", config.train_batch_size);
  values.add("gradient_clipping", config.gradient_clipping);
  add_zero(values, config.zero);
  add_data_types(values, config);
  add_optimizer(values, config);
  return values.lines();
}

}  // namespace

void require_same_config(zero::Communicator& ranks, const config::TrainConfig& config) {
  const std::vector<std::string> all =
      models::gather_texts(ranks, lines_of(config), "the ranks' configurations");
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    std::istringstream first(all[0]);
    std::istringstream other(all[rank]);
    std::string key;
    std::string here;
    std::string there;
    while (std::getline(first, key) && std::getline(first, here) && std::getline(other, there) &&
           std::getline(other, there)) {
      if (here != there)
        throw InvalidArgument("the ranks train different things: " + key + " is " + here +
                              " on rank 0 and " + there + " on rank " + std::to_string(rank));
    }
  }
}

}  // namespace sluice::train
