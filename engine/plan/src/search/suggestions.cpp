#include "search/suggestions.hpp"

#include <algorithm>
#include <filesystem>

#include "sluice/base/bytes.hpp"
#include "sluice/base/text.hpp"

namespace sluice::plan {

namespace {

using config::ByteBudget;

std::string mebibytes(std::uint64_t size_bytes) {
  return "\"" + std::to_string(ceil_div(size_bytes, kMiB)) + "MiB\"";
}

ByteBudget exactly(std::uint64_t size_bytes) {
  return ByteBudget{ByteBudget::Kind::bytes, align_up(size_bytes, kMiB)};
}

struct Candidate {
  std::string text;
  Variant variant;
};

// Placeholder for a directory of the user's choice.
constexpr const char* kSomeDirectory = "/path/on/nvme";

// Suggests leaving out keys that ask for more than the machine has: each key alone, or all of them
// where one is not enough.
void add_limit_changes(const Variant& refused, const TryPlan& try_plan,
                       std::vector<Candidate>& candidates) {
  if (refused.config.sluice.passes.each) {
    Variant variant = refused;
    variant.config.sluice.passes.each.reset();
    if (try_plan(variant))
      candidates.push_back({"leave out \"micro_batches_per_pass\" of \"sluice\"", variant});
  }
  Variant without_any = refused;
  std::vector<std::string> all;
  bool one_is_enough = false;
  const auto change = [&](const std::string& text, const auto& edit) {
    Variant variant = refused;
    edit(variant.config.zero);
    edit(without_any.config.zero);
    all.push_back(text);
    if (!try_plan(variant)) return;
    one_is_enough = true;
    candidates.push_back({text, variant});
  };
  const config::ZeroConfig& zero = refused.config.zero;
  if (zero.offload_optimizer.buffer_count) {
    change("leave out \"buffer_count\" of \"offload_optimizer\"",
           [](config::ZeroConfig& edited) { edited.offload_optimizer.buffer_count.reset(); });
  }
  if (zero.offload_param.buffer_count) {
    change("leave out \"buffer_count\" of \"offload_param\"",
           [](config::ZeroConfig& edited) { edited.offload_param.buffer_count.reset(); });
  }
  if (zero.offload_param.buffer_size) {
    change("leave out \"buffer_size\" of \"offload_param\"",
           [](config::ZeroConfig& edited) { edited.offload_param.buffer_size.reset(); });
  }
  if (zero.offload_optimizer.pin_memory.value_or(false)) {
    change("set \"pin_memory\" of \"offload_optimizer\" to false",
           [](config::ZeroConfig& edited) { edited.offload_optimizer.pin_memory = false; });
  }
  if (zero.offload_param.pin_memory.value_or(false)) {
    change("set \"pin_memory\" of \"offload_param\" to false",
           [](config::ZeroConfig& edited) { edited.offload_param.pin_memory = false; });
  }
  if (!one_is_enough && all.size() > 1 && try_plan(without_any)) {
    candidates.push_back({join(all, " and "), without_any});
  }
}

// Replaces `directory` with `to` in every key that names it. Returns these keys.
std::string move_directory(config::TrainConfig& config, const std::string& directory,
                           const std::string& to) {
  std::vector<std::string> keys;
  const auto move = [&](std::string& path, const std::string& key) {
    std::error_code unknown;
    if (path != directory && !std::filesystem::equivalent(path, directory, unknown)) return;
    path = to;
    keys.emplace_back(key);
  };
  // In a list of directories, replaces this entry only.
  const auto move_offload = [&](config::OffloadConfig& offload, const std::string& key) {
    const bool list = offload.directories.size() > 1;
    const std::string shown = list ? "\"" + directory + "\" in the list " + key : key;
    for (std::string& each : offload.directories) move(each, shown);
  };
  move_offload(config.zero.offload_optimizer, "\"nvme_path\" of \"offload_optimizer\"");
  move_offload(config.zero.offload_param, "\"nvme_path\" of \"offload_param\"");
  move(config.sluice.checkpoints.directory, "\"checkpoint_dir\" of \"sluice\"");
  return join(keys, " and ");
}

void add_disk_changes(const Variant& refused, const Plan& shape, const TryPlan& try_plan,
                      std::vector<Candidate>& candidates) {
  Variant elsewhere = refused;
  std::vector<std::string> moves;
  for (const DiskNeed& disk : shape.directories.disks) {
    if (!disk.is_short()) continue;
    const std::string to = kSomeDirectory + std::to_string(moves.size());
    moves.push_back("set " + move_directory(elsewhere.config, disk.directory, to) +
                    " to a directory with " + format_count(ceil_div(disk.needed_bytes, kMiB)) +
                    " MiB free" + (refused.config.world_size > 1 ? " for each rank" : ""));
  }
  if (moves.empty()) return;
  if (try_plan(elsewhere)) candidates.push_back({join(moves, " and "), elsewhere});
  Variant one_slot = refused;
  one_slot.config.sluice.durability = Durability::none;
  if (!try_plan(one_slot)) return;
  candidates.push_back(
      {"set \"sluice\": {\"durability\": \"none\"} (one slot of the states on disk instead of two; "
       "a run that is killed cannot be resumed)",
       one_slot});
}

// The least budget of one tier, in bytes, that makes the variant fit with everything else
// unchanged: a multiple of 1 MiB above `now` and at most `most`. 0: none.
std::uint64_t least_budget(const Variant& base, ByteBudget config::SluiceConfig::*budget,
                           std::uint64_t now, std::uint64_t most, const TryPlan& try_plan) {
  const auto fits = [&](std::uint64_t mib) {
    Variant variant = base;
    variant.config.sluice.*budget = ByteBudget{ByteBudget::Kind::bytes, mib * kMiB};
    return try_plan(variant).has_value();
  };
  std::uint64_t low = now / kMiB + 1;
  std::uint64_t high = most / kMiB;
  if (low > high || !fits(high)) return 0;
  while (low < high) {
    const std::uint64_t middle = (low + high) / 2;
    if (fits(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low * kMiB;
}

void add_budget_changes(const Variant& refused, const Plan& shape, const MachineFacts& machine,
                        const TryPlan& try_plan, std::vector<Candidate>& candidates) {
  const std::uint64_t most = machine.available_memory_bytes;
  const std::uint64_t most_device = machine.device.gpu ? machine.device.gpu->free_bytes : most;
  const std::uint64_t device = least_budget(refused, &config::SluiceConfig::device_bytes,
                                            *shape.budget.device_bytes, most_device, try_plan);
  const std::uint64_t host = least_budget(refused, &config::SluiceConfig::host_bytes,
                                          *shape.budget.host_bytes, most, try_plan);
  if (device > 0) {
    Variant variant = refused;
    variant.config.sluice.device_bytes = exactly(device);
    candidates.push_back(
        {"set \"sluice\": {\"device_bytes\": " + mebibytes(device) + "}", variant});
  }
  if (host > 0) {
    Variant variant = refused;
    variant.config.sluice.host_bytes = exactly(host);
    candidates.push_back({"set \"sluice\": {\"host_bytes\": " + mebibytes(host) + "}", variant});
  }
  if (device > 0 || host > 0) return;
  Variant variant = refused;
  variant.config.sluice.device_bytes =
      exactly(std::max(shape.least.device_bytes, *shape.budget.device_bytes));
  const std::uint64_t host_too = least_budget(variant, &config::SluiceConfig::host_bytes,
                                              *shape.budget.host_bytes, most, try_plan);
  if (host_too == 0) return;
  variant.config.sluice.host_bytes = exactly(host_too);
  candidates.push_back(
      {"set \"sluice\": {\"device_bytes\": " + mebibytes(variant.config.sluice.device_bytes.value) +
           ", \"host_bytes\": " + mebibytes(host_too) + "}",
       variant});
}

// Suggests the fewest passes that fit: gradients of several wait in free memory of the device.
void add_passes_change(const Variant& refused, const Plan& shape, const TryPlan& try_plan,
                       std::vector<Candidate>& candidates) {
  if (shape.own_loop()) return;
  const std::int64_t all = refused.config.gradient_accumulation_steps;
  for (std::int64_t each = all / 2; each >= 1; --each) {
    const bool is_asked = refused.config.sluice.passes.each == each;
    if (all % each != 0 || is_asked) continue;
    Variant variant = refused;
    variant.config.sluice.passes = {.each = each, .last = {}};
    if (!try_plan(variant)) continue;
    candidates.push_back(
        {"set \"sluice\": {\"micro_batches_per_pass\": " + std::to_string(each) + "}", variant});
    return;
  }
}

// Gradients of a user's loop share slots, if each is updated in backward.
void add_update_change(const Variant& refused, const Plan& shape, const TryPlan& try_plan,
                       std::vector<Candidate>& candidates) {
  if (!shape.own_loop() || refused.config.updates_need_all_gradients()) return;
  Variant variant = refused;
  variant.config.sluice.updates.in_backward = true;
  if (refused.config.sluice.updates.in_backward || !try_plan(variant)) return;
  candidates.push_back({"set \"sluice\": {\"optimizer_in_backward\": true}", variant});
}

void add_micro_batch_changes(const Variant& refused, const TryPlan& try_plan,
                             std::vector<Candidate>& candidates) {
  for (std::int64_t micro = refused.config.micro_batch_size / 2; micro >= 1; micro /= 2) {
    Variant variant = refused;
    const std::int64_t samples =
        refused.config.micro_batch_size * refused.config.gradient_accumulation_steps;
    if (samples % micro != 0) continue;
    if (samples / micro > kMaxMicroBatches) return;
    variant.config.micro_batch_size = micro;
    variant.config.gradient_accumulation_steps = samples / micro;
    if (!try_plan(variant)) continue;
    candidates.push_back({"set \"train_micro_batch_size_per_gpu\": " + std::to_string(micro) +
                              ", \"gradient_accumulation_steps\": " +
                              std::to_string(samples / micro) + " (the same train_batch_size)",
                          variant});
    return;
  }
}

void add_offload_changes(const Variant& refused, const TryPlan& try_plan,
                         std::vector<Candidate>& candidates) {
  using Device = config::OffloadConfig::Device;
  const config::ZeroConfig& zero = refused.config.zero;
  const auto offload = [&](const char* section, config::OffloadConfig config::ZeroConfig::*member,
                           Device device) {
    if ((zero.*member).device >= device) return;
    Variant variant = refused;
    variant.config.zero.stage = 3;
    (variant.config.zero.*member).device = device;
    const std::vector<std::string>& known = zero.states_place().directories;
    const std::string path = known.empty() ? kSomeDirectory : known.front();
    (variant.config.zero.*member).directories = {path};
    if (!try_plan(variant)) return;
    candidates.push_back(
        {"set \"zero_optimization\": {\"stage\": 3, \"" + std::string(section) +
             "\": {\"device\": \"" +
             (device == Device::cpu ? "cpu\"" : "nvme\", \"nvme_path\": \"" + path + "\"") + "}}",
         variant});
  };
  offload("offload_optimizer", &config::ZeroConfig::offload_optimizer, Device::cpu);
  offload("offload_param", &config::ZeroConfig::offload_param, Device::cpu);
  offload("offload_optimizer", &config::ZeroConfig::offload_optimizer, Device::nvme);
  offload("offload_param", &config::ZeroConfig::offload_param, Device::nvme);
}

void add_automatic_budgets(const Variant& refused, const TryPlan& try_plan,
                           std::vector<Candidate>& candidates) {
  Variant variant = refused;
  variant.config.sluice.device_bytes = ByteBudget{};
  variant.config.sluice.host_bytes = ByteBudget{};
  const auto plan = try_plan(variant);
  if (!plan) return;
  candidates.push_back(
      {"set \"sluice\": {\"device_bytes\": \"auto\", \"host_bytes\": \"auto\"} (here " +
           format_bytes(*plan->budget.device_bytes) + " and " +
           format_bytes(*plan->budget.host_bytes) + ")",
       variant});
}

void add_sequence_changes(const Variant& refused, const TryPlan& try_plan,
                          std::vector<Candidate>& candidates) {
  for (std::int64_t positions = refused.model.n_positions / 2; positions >= 16; positions /= 2) {
    Variant variant = refused;
    variant.model.n_positions = positions;
    if (!try_plan(variant)) continue;
    candidates.push_back({"set \"n_positions\": " + std::to_string(positions) +
                              " in the model file (shorter sequences)",
                          variant});
    return;
  }
}

}  // namespace

std::vector<std::string> suggest_changes(const Variant& refused, const Plan& shape,
                                         const MachineFacts& machine, const TryPlan& try_plan) {
  constexpr std::size_t kMost = 4;
  std::vector<Candidate> candidates;
  add_limit_changes(refused, try_plan, candidates);
  add_disk_changes(refused, shape, try_plan, candidates);
  add_budget_changes(refused, shape, machine, try_plan, candidates);
  add_update_change(refused, shape, try_plan, candidates);
  add_passes_change(refused, shape, try_plan, candidates);
  add_micro_batch_changes(refused, try_plan, candidates);
  add_offload_changes(refused, try_plan, candidates);
  add_automatic_budgets(refused, try_plan, candidates);
  if (candidates.size() < 2) add_sequence_changes(refused, try_plan, candidates);
  std::vector<std::string> lines;
  for (const Candidate& candidate : candidates) {
    if (lines.size() == kMost) break;
    lines.push_back(candidate.text);
  }
  return lines;
}

}  // namespace sluice::plan
