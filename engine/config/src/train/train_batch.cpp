#include "train/train_batch.hpp"

#include <string>

#include "sluice/base/text.hpp"

namespace sluice::config {

namespace {

constexpr std::int64_t kMaxBatch = 1'000'000'000;  // as in the table
constexpr const char* kTrainBatch = "train_batch_size";
constexpr const char* kMicroBatch = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulation = "gradient_accumulation_steps";

// Derives the missing ones of the three batch sizes, as DeepSpeed does: floor division first, then
// the check of the product.
void derive_batch(TrainConfig& config, bool has_train, bool has_micro, bool has_accumulation) {
  std::int64_t& train = config.train_batch_size;
  std::int64_t& micro = config.micro_batch_size;
  std::int64_t& accumulation = config.gradient_accumulation_steps;
  const std::int64_t ranks = config.world_size;
  if (has_train && has_micro) {
    if (!has_accumulation) accumulation = train / micro / ranks;
  } else if (has_train) {
    if (!has_accumulation) accumulation = 1;
    micro = train / ranks / accumulation;
  } else {
    if (!has_accumulation) accumulation = 1;
    // The table limits both factors to 1e9, so only the ranks can overflow 64 bits.
    if (__builtin_mul_overflow(micro * accumulation, ranks, &train)) train = kMaxBatch + 1;
  }
}

// A file for more ranks trains the same batch with more accumulation.
std::string advice_on_ranks(const Checker& checker, const TrainConfig& config) {
  const std::int64_t on_one_rank = config.micro_batch_size * config.gradient_accumulation_steps;
  if (on_one_rank < 1 || config.train_batch_size % on_one_rank != 0 || config.world_size != 1)
    return "";
  const std::int64_t ranks = config.train_batch_size / on_one_rank;
  return ". The file is for " + std::to_string(ranks) + " ranks: " +
         (checker.has_flags() ? "--gradient-accumulation-steps "
                              : "\"gradient_accumulation_steps\": ") +
         std::to_string(config.train_batch_size / config.micro_batch_size) +
         " trains the same batch on one";
}

// After the training batch: why it is no product of the others. `derived`: of which one factor was
// derived by division.
std::string why_no_product(const TrainConfig& config, bool derived) {
  const std::int64_t micro = config.micro_batch_size;
  const std::int64_t accumulation = config.gradient_accumulation_steps;
  const std::string ranks = std::to_string(config.world_size);
  // A factor of 0 was derived: the division left nothing.
  if (accumulation == 0)
    return " is less than one micro batch of " + std::to_string(micro) +
           (config.world_size > 1 ? " on each of " + ranks + " ranks" : "");
  if (micro == 0)
    return " is less than " + std::to_string(accumulation) + " accumulation steps" +
           (config.world_size > 1 ? " on each of " + ranks + " ranks" : "");
  const std::string product =
      std::to_string(micro) + " x " + std::to_string(accumulation) + " x " + ranks;
  return " is not " + product + (derived ? ", the nearest product below it" : "");
}

}  // namespace

void read_batch(Checker& checker, TrainConfig& config) {
  for (const char* path : {kTrainBatch, kMicroBatch, kAccumulation}) {
    if (checker.wrong(path)) return;
  }
  const bool has_train = checker.find(kTrainBatch) != nullptr;
  const bool has_micro = checker.find(kMicroBatch) != nullptr;
  const bool has_accumulation = checker.find(kAccumulation) != nullptr;
  checker.read(kTrainBatch, config.train_batch_size);
  checker.read(kMicroBatch, config.micro_batch_size);
  checker.read(kAccumulation, config.gradient_accumulation_steps);
  const char* const blamed = has_train          ? kTrainBatch
                             : has_accumulation ? kAccumulation
                                                : kMicroBatch;
  if (!has_train && !has_micro) {
    for (const char* path : {kMicroBatch, kTrainBatch}) {
      if (checker.is_auto(path)) return checker.add_open_auto(path);
    }
    if (checker.has_problem_with(kMicroBatch)) return;  // an unknown key that leads to it
    checker.add_problem(blamed,
                        "train_batch_size or train_micro_batch_size_per_gpu is required; add one "
                        "of them" +
                            checker.if_flags(", or give " + flags_of(kMicroBatch)));
    return;
  }
  derive_batch(config, has_train, has_micro, has_accumulation);
  if (config.train_batch_size > kMaxBatch) {
    checker.add_problem(blamed, "the train batch would be more than " +
                                    format_count(static_cast<unsigned long long>(kMaxBatch)) +
                                    " sequences");
    return;
  }
  // Division cannot overflow.
  const std::int64_t per_rank = config.train_batch_size / config.world_size;
  if (config.micro_batch_size > 0 && config.gradient_accumulation_steps > 0 &&
      config.train_batch_size % config.world_size == 0 && per_rank % config.micro_batch_size == 0 &&
      per_rank / config.micro_batch_size == config.gradient_accumulation_steps) {
    return;
  }
  checker.add_problem(blamed, "must be micro batch x accumulation steps x ranks: " +
                                  std::to_string(config.train_batch_size) +
                                  why_no_product(config, !has_micro || !has_accumulation) +
                                  advice_on_ranks(checker, config));
}

}  // namespace sluice::config
