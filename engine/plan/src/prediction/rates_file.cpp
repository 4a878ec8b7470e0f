#include <fcntl.h>
#include <json/json.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <sstream>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/fd.hpp"
#include "sluice/base/file/paths.hpp"
#include "sluice/base/file/proc.hpp"
#include "sluice/base/json/json_reader.hpp"
#include "sluice/base/written.hpp"
#include "sluice/cpu_adam/optimizer.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/plan/plan_text.hpp"
#include "sluice/plan/rates.hpp"

namespace sluice::plan {

namespace fs = std::filesystem;

namespace {

// Entries of one file: machines and shapes.
constexpr Json::ArrayIndex kMostEntries = 64;
constexpr std::uint64_t kMostFileBytes = kMiB;

std::string processor_name() {
  std::string name = proc_field("/proc/cpuinfo", "model name");
  return name.empty() ? "unknown processor" : name;
}

// Visits each number of the rates with its name in the file.
template <typename Rates, typename Visit>
void each_number(Rates& rates, const Visit& visit) {
  const auto unit = [&](const std::string& name, auto& seconds) {
    visit(name + ".forward", seconds.forward);
    visit(name + ".forward_keeping", seconds.forward_saving);
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

// Limits of plausible numbers, far beyond any machine and any prediction.
constexpr double kMostSeconds = 1e6;
constexpr double kMostPerSecond = 1e18;

// 0 means that the number was not measured.
bool is_plausible(const std::string& name, double number) {
  if (!name.ends_with("_per_second")) return number >= 0 && number <= kMostSeconds;
  return number == 0 || (number >= 1 && number <= kMostPerSecond);
}

// The entries of a file, oldest first. Returns nullopt when the file holds something else.
std::optional<Json::Value> entries_of(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return Json::Value(Json::arrayValue);
  std::optional<Json::Value> root;
  try {
    const std::string text = read_regular_file(path, kMostFileBytes);
    if (text.empty()) return Json::Value(Json::arrayValue);
    root = JsonReader(lenient_json()).read(text);
  } catch (const StorageError&) {
    return std::nullopt;
  }
  if (!root || !root->isObject() || !(*root)["sluice_rates"].isArray()) return std::nullopt;
  return (*root)["sluice_rates"];
}

// The file is written under this name and then renamed to `path`.
std::string temporary_name(const std::string& path) {
  return path + "." + std::to_string(::getpid());
}

Json::Value replaceable_entries(const std::string& path) {
  std::optional<Json::Value> entries = entries_of(path);
  SLUICE_CHECK(entries.has_value(),
               path +
                   ": holds something else than rates, and would be replaced; remove it, or "
                   "choose another name");
  return *std::move(entries);
}

}  // namespace

std::string rates_key(const Plan& plan) {
  const config::TrainConfig& config = plan.config;
  utsname system{};
  ::uname(&system);
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  std::ostringstream key;
  key << SLUICE_VERSION << "; " << system.nodename << ", " << processor_name() << ", " << pages
      << " pages; " << compute_name(plan)
      << (plan.device.gpu && config.sluice.gpu_math.deterministic ? ", deterministic" : "")
      << (plan.device.gpu && config.sluice.gpu_math.tf32 ? ", TF32" : "") << "; threads "
      << plan.schedule.threads.compute << ' ' << plan.schedule.threads.optimizer << ' '
      << plan.schedule.threads.io << ", " << cpu_adam::kernel_in_use() << "; width "
      << plan.model.n_embd << ", inner width " << plan.model.inner_size() << ", heads "
      << plan.model.n_head << ", activation " << static_cast<int>(plan.model.activation_function)
      << (plan.model.tie_word_embeddings ? "" : ", untied") << ", sequence "
      << plan.model.n_positions << ", vocabulary " << plan.model.vocab_size << ", micro-batch "
      << config.micro_batch_size << ", dropout " << plan.model.embd_pdrop << ' '
      << plan.model.attn_pdrop << ' ' << plan.model.resid_pdrop << ", "
      << name_of(plan.compute_dtype) << "; " << config::name_of(plan.state_format.master) << ", "
      << config::name_of(plan.state_format.moments)
      // Rates that older versions saved are of Adam.
      << (plan.state_format.rule == cpu_adam::Rule::adam
              ? ""
              : ", " + std::string(models::name_of(plan.state_format.rule)))
      << (config.gradient_dtype() == plan.compute_dtype
              ? ""
              : ", gradients in " + std::string(name_of(config.gradient_dtype())));
  const std::vector<std::string> directories = plan.swap_directories();
  if (!directories.empty()) {
    key << "; " << config.sluice.io.backend << ' ' << config.aio.block_size << " x "
        << config.aio.queue_depth << ", " << config.sluice.io.reads_per_write << " reads in a row"
        << (config.sluice.io.submit_polling ? ", polling" : "") << " in";
    for (std::size_t i = 0; i < directories.size(); ++i) {
      key << ' ' << fs::absolute(directories[i]).lexically_normal().string();
      if (i < config.sluice.io.drive_weights.size())
        key << " x " << config.sluice.io.drive_weights[i];
    }
  }
  return key.str();
}

std::optional<SavedRates> load_rates(const std::string& path, const std::string& key) {
  std::optional<Json::Value> entries;
  try {
    entries = entries_of(path);
  } catch (const IoError&) {
  }
  if (!entries) return std::nullopt;
  for (Json::ArrayIndex i = entries->size(); i-- > 0;) {
    const Json::Value& entry = (*entries)[i];
    if (!entry.isObject() || !entry["key"].isString() || entry["key"].asString() != key) continue;
    SavedRates saved;
    bool whole = entry["measured"].isString() && entry["rates"].isObject();
    if (!whole) return std::nullopt;
    saved.measured = entry["measured"].asString();
    std::replace_if(
        saved.measured.begin(), saved.measured.end(),
        [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, ' ');
    each_number(saved.rates, [&](const std::string& name, double& number) {
      const Json::Value& value = entry["rates"][name];
      whole = whole && value.isNumeric() && is_plausible(name, value.asDouble());
      if (whole) number = value.asDouble();
    });
    return whole ? std::optional(saved) : std::nullopt;
  }
  return std::nullopt;
}

void require_rates(const std::string& path) {
  const UniqueFd readable(
      SLUICE_SYSCALL(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC), path));
  const std::optional<Json::Value> entries = entries_of(path);
  SLUICE_CHECK(entries.has_value(),
               path + ": holds no rates; sluice plan --probe --rates FILE writes a file of rates");
}

void check_rates_path(const std::string& path) {
  replaceable_entries(path);
  // save_rates() makes the folders that are absent.
  const fs::path replaced = file_behind_links(path);
  fs::path folder = replaced.parent_path();
  std::error_code error;
  while (!folder.empty() && !fs::exists(folder, error) && !error) folder = folder.parent_path();
  if (error) throw IoError(error.value(), "stat", folder.string());
  const std::string temporary = temporary_name((folder / replaced.filename()).string());
  const UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  if (!fd) throw IoError(errno, "write", path);
  ::unlink(temporary.c_str());
}

void save_rates(const std::string& path, const std::string& key, const SavedRates& saved) {
  const Json::Value before = replaceable_entries(path);
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
  const std::string replaced = file_behind_links(path);
  const fs::path parent = fs::path(replaced).parent_path();
  if (!parent.empty()) fs::create_directories(parent, error);
  if (error) throw IoError(error.value(), "create directory", parent.string());
  Json::StreamWriterBuilder writer;
  writer["indentation"] = " ";
  replace_file(replaced, Json::writeString(writer, root) + "\n",
               {.draft = temporary_name(replaced)});
}

FindRates rates_in(std::string path) {
  return [path = std::move(path)](const Plan& plan) -> std::optional<MachineRates> {
    const std::optional<SavedRates> saved = load_rates(path, rates_key(plan));
    if (!saved) return std::nullopt;
    return saved->rates;
  };
}

}  // namespace sluice::plan
