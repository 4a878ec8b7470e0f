#include <json/json.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "sluice/base/error.hpp"
#include "sluice/cpu_adam/optimizer.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/plan/rates.hpp"

namespace sluice::plan {

namespace fs = std::filesystem;

namespace {

// Machines and shapes that one file remembers.
constexpr Json::ArrayIndex kMostEntries = 64;

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

// Each number of the rates with its name.
template <typename Rates, typename Visit>
void each_number(Rates& rates, const Visit& visit) {
  const auto unit = [&](const std::string& name, auto& seconds) {
    visit(name + ".forward", seconds.forward);
    visit(name + ".forward_keeping", seconds.forward_keeping);
    visit(name + ".backward", seconds.backward);
  };
  const auto both = [&](const std::string& name, auto& of) {
    unit(name + ".first", of.first);
    unit(name + ".next", of.next);
  };
  both("embedding", rates.embedding);
  both("block", rates.block);
  both("head", rates.head);
  visit("update_elements_per_second", rates.update_elements_per_second);
  visit("gradient_bytes_per_second", rates.gradient_bytes_per_second);
  visit("copy_bytes_per_second", rates.copy_bytes_per_second);
  visit("checksum_bytes_per_second", rates.checksum_bytes_per_second);
  visit("read_bytes_per_second", rates.read_bytes_per_second);
  visit("write_bytes_per_second", rates.write_bytes_per_second);
  visit("swap_bytes_per_second", rates.swap_bytes_per_second);
}

// The entries of a file, oldest first; none when it is absent or something else.
Json::Value entries_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Json::Value root;
  std::string errors;
  try {
    if (!file || !Json::parseFromStream(Json::CharReaderBuilder(), file, &root, &errors))
      return Json::Value(Json::arrayValue);
  } catch (const Json::Exception&) {  // nested too deeply
    return Json::Value(Json::arrayValue);
  }
  const bool known = root.isObject() && root["sluice_rates"].isArray();
  return known ? root["sluice_rates"] : Json::Value(Json::arrayValue);
}

}  // namespace

std::string rates_key(const Plan& plan) {
  const config::TrainConfig& config = plan.config;
  utsname system{};
  ::uname(&system);
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  std::ostringstream key;
  key << SLUICE_VERSION << "; " << system.nodename << ", " << processor_name() << ", " << pages
      << " pages; threads " << plan.threads.compute << ' ' << plan.threads.optimizer << ' '
      << plan.threads.io << ", " << cpu_adam::kernel_in_use() << "; width " << plan.model.n_embd
      << ", heads " << plan.model.n_head << ", sequence " << plan.model.n_positions
      << ", vocabulary " << plan.model.vocab_size << ", micro-batch " << config.micro_batch_size
      << ", dropout " << plan.model.attn_pdrop << ' ' << plan.model.resid_pdrop << ", "
      << name_of(plan.compute_dtype) << "; " << config::name_of(plan.state_format.master) << ", "
      << config::name_of(plan.state_format.moments);
  const std::vector<std::string> directories = plan.swap_directories();
  if (!directories.empty()) {
    key << "; " << config.sluice.io.backend << ' ' << config.aio.block_size << " x "
        << config.aio.queue_depth << " in";
    for (const std::string& directory : directories) key << ' ' << directory;
  }
  return key.str();
}

std::optional<SavedRates> load_rates(const std::string& path, const std::string& key) {
  const Json::Value entries = entries_of(path);
  for (Json::ArrayIndex i = entries.size(); i-- > 0;) {
    const Json::Value& entry = entries[i];
    if (!entry.isObject() || !entry["key"].isString() || entry["key"].asString() != key) continue;
    SavedRates saved;
    bool whole = entry["measured"].isString() && entry["rates"].isObject();
    if (!whole) return std::nullopt;
    saved.measured = entry["measured"].asString();
    each_number(saved.rates, [&](const std::string& name, double& number) {
      const Json::Value& value = entry["rates"][name];
      whole = whole && value.isNumeric() && value.asDouble() >= 0;
      if (whole) number = value.asDouble();
    });
    return whole ? std::optional(saved) : std::nullopt;
  }
  return std::nullopt;
}

void save_rates(const std::string& path, const std::string& key, const SavedRates& saved) {
  const Json::Value before = entries_of(path);
  Json::Value entry(Json::objectValue);
  entry["key"] = key;
  entry["measured"] = saved.measured;
  each_number(saved.rates,
              [&](const std::string& name, double number) { entry["rates"][name] = number; });
  Json::Value root(Json::objectValue);
  Json::Value& entries = root["sluice_rates"] = Json::Value(Json::arrayValue);
  const Json::ArrayIndex first =
      before.size() < kMostEntries ? 0 : before.size() - kMostEntries + 1;
  for (Json::ArrayIndex i = first; i < before.size(); ++i)
    if (before[i].isObject() && before[i]["key"] != entry["key"]) entries.append(before[i]);
  entries.append(entry);

  std::error_code error;
  const fs::path parent = fs::path(path).parent_path();
  if (!parent.empty()) fs::create_directories(parent, error);
  if (error) throw IoError(error.value(), "create directory", parent.string());
  const std::string temporary = path + "." + std::to_string(::getpid());
  {
    std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
    Json::StreamWriterBuilder writer;
    writer["indentation"] = " ";
    file << Json::writeString(writer, root) << "\n";
    if (!file.flush()) {
      fs::remove(temporary, error);
      throw IoError(EIO, "write", temporary);
    }
  }
  fs::rename(temporary, path, error);
  if (error) throw IoError(error.value(), "rename", path);
}

FindRates rates_in(std::string path) {
  return [path = std::move(path)](const Plan& plan) -> std::optional<MachineRates> {
    const std::optional<SavedRates> saved = load_rates(path, rates_key(plan));
    if (!saved) return std::nullopt;
    return saved->rates;
  };
}

}  // namespace sluice::plan
