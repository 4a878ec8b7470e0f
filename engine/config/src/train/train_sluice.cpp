#include "train/train_sluice.hpp"

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "train/train_drives.hpp"

namespace sluice::config {

std::string name_of(const ComputeDevice& device) {
  switch (device.kind) {
    case ComputeDevice::Kind::automatic:
      return "auto";
    case ComputeDevice::Kind::host:
      return "host";
    case ComputeDevice::Kind::cuda:
      return device.index ? "cuda:" + std::to_string(*device.index) : "cuda";
  }
  return "auto";
}
std::optional<ComputeDevice> find_device(const std::string& name) {
  constexpr std::size_t kMostDigits = 4;
  const std::string cuda = "cuda:";
  ComputeDevice device;
  if (name == "auto") return device;
  device.kind = ComputeDevice::Kind::host;
  if (name == "host") return device;
  device.kind = ComputeDevice::Kind::cuda;
  if (name == "cuda") return device;
  const std::string digits = name.starts_with(cuda) ? name.substr(cuda.size()) : "";
  const bool is_index = !digits.empty() && digits.size() <= kMostDigits &&
                        digits.find_first_not_of("0123456789") == std::string::npos;
  if (!is_index) return std::nullopt;
  device.index = std::stoi(digits);
  return device;
}
std::string_view name_of(Activations activations) {
  // In the order of the enum.
  constexpr std::string_view kNames[] = {"auto", "keep", "recompute", "offload"};
  return kNames[static_cast<std::size_t>(activations)];
}
std::string_view name_of(MasterFormat format) {
  return format == MasterFormat::split ? "split" : "fp32";
}
std::string_view name_of(MomentFormat format) {
  return format == MomentFormat::bf16 ? "bf16" : "fp32";
}

namespace {

// Parses "80%" as 80. Returns 0 unless the text is a whole percentage from 1 to 100.
std::uint64_t percent_of(const std::string& text) {
  const std::string digits = text.substr(0, text.size() - 1);
  if (digits.empty() || digits.size() > 3) return 0;
  if (digits.find_first_not_of("0123456789") != std::string::npos) return 0;
  const unsigned long value = std::stoul(digits);
  return value <= 100 ? value : 0;
}

void read_budget(Checker& checker, const std::string& path, ByteBudget& budget) {
  const Json::Value* value = checker.find(path);
  if (value == nullptr) return;
  if (value->isString() && value->asString() == "auto") {
    budget = {};
    return;
  }
  try {
    if (!value->isString()) {
      budget = {ByteBudget::Kind::bytes, value->asInt64() > 0 ? value->asUInt64() : 0};
    } else if (value->asString().ends_with('%')) {
      budget = {ByteBudget::Kind::percent, percent_of(value->asString())};
    } else {
      budget = {ByteBudget::Kind::bytes, parse_bytes(value->asString())};
    }
  } catch (const InvalidArgument& error) {
    checker.add_problem(path, error.what());
    return;
  }
  if (budget.value > 0) return;
  checker.add_problem(
      path,
      budget.kind == ByteBudget::Kind::percent
          ? "expected a whole percentage from \"1%\" to \"100%\", found " + checker.shown(*value)
          : "a budget must be at least one byte, found " + checker.shown(*value));
}

// Host memory that a run can do without: 0 is a value too.
void read_spare(Checker& checker, const char* path, ByteBudget& budget) {
  const Json::Value* value = checker.find(path);
  if (value != nullptr && value->isInt64() && value->asInt64() == 0) {
    budget = {ByteBudget::Kind::bytes, 0};
  } else {
    read_budget(checker, path, budget);
  }
}

void read_checkpoint(Checker& checker, SluiceConfig& sluice) {
  if (checker.is_null("sluice.checkpoint_dir")) sluice.checkpoints.directory.clear();
  checker.read("sluice.checkpoint_dir", sluice.checkpoints.directory);
  checker.read("sluice.checkpoint_every", sluice.checkpoints.every);
  checker.read("sluice.keep", sluice.checkpoints.keep);
  read_spare(checker, "sluice.checkpoint_bytes", sluice.checkpoints.copy_bytes);
  if (sluice.checkpoints.every > 0 && sluice.checkpoints.directory.empty() &&
      !checker.wrong("sluice.checkpoint_dir")) {
    checker.add_problem("sluice.checkpoint_every",
                        "needs a directory; add \"checkpoint_dir\": \"/a/directory\"");
  }
  if (sluice.checkpoints.directory.empty())
    checker.note_without_effect("sluice.keep", "checkpoint_dir is set");
  if (sluice.checkpoints.every == 0)
    checker.note_without_effect("sluice.checkpoint_bytes", "checkpoint_every is set");
}

void read_activations(Checker& checker, SluiceConfig& sluice) {
  constexpr const char* kHere = "sluice.activations";
  constexpr const char* kDeepSpeeds = "activation_checkpointing.cpu_checkpointing";
  std::string activations;
  checker.read(kHere, activations);
  for (const Activations each :
       {Activations::automatic, Activations::keep, Activations::recompute, Activations::offload}) {
    if (activations == name_of(each)) sluice.activations = each;
  }
  bool to_host = false;
  checker.read(kDeepSpeeds, to_host);
  if (!to_host) return;
  if (checker.given(kHere) && sluice.activations != Activations::offload) {
    checker.add_problem(kDeepSpeeds, "puts unit inputs into host memory, and " +
                                         std::string(kHere) + " is \"" + activations +
                                         "\"; remove one of them");
  }
  sluice.activations = Activations::offload;
}

void read_state_format(Checker& checker, SluiceConfig& sluice) {
  const auto read = [&](const char* path, auto& format, auto other) {
    using Format = decltype(other);
    if (checker.is_null(path)) format.reset();
    std::string name;
    checker.read(path, name);
    if (name == name_of(Format::fp32)) format = Format::fp32;
    if (name == name_of(other)) format = other;
  };
  read("sluice.master", sluice.master, MasterFormat::split);
  read("sluice.moments", sluice.moments, MomentFormat::bf16);
}

void read_device(Checker& checker, SluiceConfig& sluice) {
  constexpr const char* kPath = "sluice.device";
  std::string name;
  checker.read(kPath, name);
  if (const std::optional<ComputeDevice> device = find_device(name)) {
    sluice.device = *device;
  } else if (checker.find(kPath) != nullptr && !checker.wrong(kPath)) {
    checker.add_problem(kPath, "expected \"auto\", \"host\", \"cuda\" or \"cuda:1\", found " +
                                   checker.shown(*checker.find(kPath)));
  }
  checker.read("sluice.deterministic", sluice.gpu_math.deterministic);
  checker.read("sluice.tf32", sluice.gpu_math.tf32);
  if (sluice.device.kind == ComputeDevice::Kind::host)
    checker.note_without_effect("sluice.tf32", "the model computes on a GPU");
}

}  // namespace

void read_sluice(Checker& checker, SluiceConfig& sluice) {
  read_device(checker, sluice);
  read_budget(checker, "sluice.device_bytes", sluice.device_bytes);
  read_budget(checker, "sluice.host_bytes", sluice.host_bytes);
  std::string durability;
  checker.read("sluice.durability", durability);
  sluice.durability = find_durability(durability).value_or(sluice.durability);
  checker.read("sluice.commit_every", sluice.commit_every);
  read_checkpoint(checker, sluice);
  checker.read("sluice.strict", sluice.strict);
  checker.read("sluice.approximate", sluice.approximate);
  checker.read("sluice.overlap", sluice.overlap);
  std::string non_finite;
  checker.read("sluice.non_finite", non_finite);
  if (non_finite == "skip") sluice.non_finite = NonFinite::skip;
  if (non_finite == "stop") sluice.non_finite = NonFinite::stop;
  read_activations(checker, sluice);
  checker.read("sluice.micro_batches_per_pass", sluice.passes.each);
  checker.read("sluice.last_pass_micro_batches", sluice.passes.last);
  read_state_format(checker, sluice);
  read_spare(checker, "sluice.cache_bytes", sluice.cache_bytes);
  read_spare(checker, "sluice.speculative_bytes", sluice.updates.speculative_bytes);
  checker.read("sluice.gpu_updates", sluice.updates.on_gpu);
  checker.read("sluice.optimizer_in_backward", sluice.updates.in_backward);
  const Json::Value* threads = checker.find("sluice.threads");
  if (checker.is_null("sluice.threads") || (threads != nullptr && !threads->isObject()))
    sluice.threads = {};
  checker.read("sluice.threads.compute", sluice.threads.compute);
  checker.read("sluice.threads.optimizer", sluice.threads.optimizer);
  checker.read("sluice.threads.io", sluice.threads.io);
  checker.read("sluice.io.backend", sluice.io.backend);
  checker.read("sluice.io.reads_per_write", sluice.io.reads_per_write);
  checker.read("sluice.io.submit_polling", sluice.io.submit_polling);
  if (sluice.io.submit_polling && sluice.io.backend != "auto" && sluice.io.backend != "io_uring") {
    checker.add_problem("sluice.io.submit_polling",
                        "only io_uring has it, and the backend is \"" + sluice.io.backend + "\"");
  }
  read_drives(checker, sluice);
  checker.read("sluice.seed", sluice.seed);
}

}  // namespace sluice::config
