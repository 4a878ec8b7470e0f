#include "keys/settings.hpp"

#include <algorithm>

#include "json/key_path.hpp"
#include "sluice/base/error.hpp"
#include "sluice/config/key_table.hpp"

namespace sluice::config {

namespace {

constexpr const char* kTrainBatch = "train_batch_size";
constexpr const char* kMicroBatch = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulation = "gradient_accumulation_steps";

const KeyInfo* find_key(const std::string& path) {
  const auto table = key_table();
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const KeyInfo& info) { return info.path == path; });
  return found == table.end() ? nullptr : &*found;
}

// The other name of the last part of `path`, or "".
std::string alias_of(const std::string& path) {
  const KeyInfo* info = find_key(path);
  return info == nullptr ? "" : std::string(info->alias);
}

// A key path in the document: its names there, and its value, if it has one.
struct Place {
  std::vector<std::string> names;
  std::string list;  // the key path of the list that the last name counts in, or ""
  const Json::Value* value = nullptr;
};

Place find_place(const JsonDocument& document, const std::string& key) {
  Place place;
  place.value = &document.root();
  std::string path;
  for (std::size_t from = 0; from <= key.size();) {
    const std::size_t end = std::min(key.find('.', from), key.size());
    std::string name = key.substr(from, end - from);
    from = end + 1;
    if (from > key.size() && is_index(name) && find_key(path) != nullptr) place.list = path;
    path = path_of(path, name);
    const Json::Value* at = place.value;
    const bool in_object = at != nullptr && at->isObject();
    const std::string alias = alias_of(path);
    if (in_object && !at->isMember(name) && !alias.empty() && at->isMember(alias)) name = alias;
    place.value = in_object ? at->find(name.data(), name.data() + name.size()) : nullptr;
    if (is_index(name) && at != nullptr && at->isArray()) {
      const auto index = static_cast<Json::ArrayIndex>(std::stoul(name));
      place.value = index < at->size() ? &(*at)[index] : nullptr;
    }
    place.names.push_back(std::move(name));
  }
  return place;
}

bool is_auto(const Json::Value* value) {
  return value != nullptr && value->isString() && value->asString() == "auto";
}

// A list whose element is set begins as its default.
void begin_list(JsonDocument& document, const Place& place, const std::string& flag) {
  if (place.list.empty()) return;
  const Place list = find_place(document, place.list);
  if (list.value != nullptr && list.value->isArray()) return;
  document.set(list.names, *parse_json_value(find_key(place.list)->default_json), flag);
}

std::string text_of(const JsonDocument& document, const Json::Value& value) {
  const std::string shown = document.shown(value);
  return shown.substr(0, shown.rfind(" ("));
}

// A flag as a line names it: "--set KEY" beside its key is "--set".
std::string shown_flag(const std::string& flag) {
  return flag.starts_with("--set ") ? "--set" : flag;
}

Json::Value value_of(const Setting& setting) {
  return parse_json_value(setting.value).value_or(Json::Value(setting.value));
}

// The keys of a section that a setting replaces as a whole, which are lost with it.
std::string lost_keys(const Json::Value& section, const Json::Value& value) {
  std::string names;
  for (const std::string& name : section.getMemberNames()) {
    if (value.isObject() && value.isMember(name)) continue;
    names += (names.empty() ? "" : ", ") + on_one_line(name);
  }
  return names;
}

// Says what the setting replaces.
void add_line(const JsonDocument& document, const Setting& setting, const Place& place,
              const Json::Value& value, std::vector<std::string>& lines) {
  if (place.value == nullptr || is_auto(place.value) || place.value->isNull()) return;
  if (*place.value == value) return;
  const std::string begin = "note: " + on_one_line(setting.key) + ": ";
  if (place.value->isObject()) {
    const std::string lost = lost_keys(*place.value, value);
    if (!lost.empty())
      lines.push_back(begin + shown_flag(setting.flag) +
                      " replaces the whole section, without its keys " + lost);
    return;
  }
  const std::string giver = document.flag_of(*place.value);
  lines.push_back(begin + on_one_line(setting.value) + " of " + shown_flag(setting.flag) +
                  " replaces " + text_of(document, *place.value) + " of " +
                  (giver.empty() ? "the file" : shown_flag(giver)));
}

void apply(JsonDocument& document, const Setting& setting, std::vector<std::string>& lines) {
  const Place place = find_place(document, setting.key);
  if (setting.only_auto && !is_auto(place.value)) return;
  const Json::Value value = value_of(setting);
  add_line(document, setting, place, value, lines);
  begin_list(document, place, setting.flag);
  document.set(place.names, value, setting.flag);
}

// The key by the table's names: "bfloat16.enabled" is "bf16.enabled".
std::string canonical(const std::string& key) {
  std::string path;
  for (std::size_t from = 0; from <= key.size();) {
    const std::size_t end = std::min(key.find('.', from), key.size());
    const std::string name = key.substr(from, end - from);
    const std::string parent = path.empty() ? "" : path + ".";
    const auto table = key_table();
    const auto found = std::find_if(table.begin(), table.end(), [&](const KeyInfo& info) {
      return !info.alias.empty() && info.alias == name && info.path.starts_with(parent) &&
             info.path.find('.', parent.size()) == std::string_view::npos;
    });
    path = found == table.end() ? parent + name : std::string(found->path);
    from = end + 1;
  }
  return path;
}

// The settings that count: the last one of each key, with a line where it replaces another value.
// Sections come before their keys, and lists before their elements, so that none is lost in them.
std::vector<Setting> effective(const std::vector<Setting>& all, std::vector<std::string>& lines) {
  std::vector<Setting> kept;
  for (const Setting& setting : all) {
    const auto earlier = std::find_if(kept.begin(), kept.end(), [&](const Setting& other) {
      return canonical(other.key) == canonical(setting.key) && !other.only_auto &&
             !setting.only_auto;
    });
    if (earlier == kept.end()) {
      kept.push_back(setting);
      continue;
    }
    const Json::Value value = value_of(setting), before = value_of(*earlier);
    if (value != before)
      lines.push_back("note: " + on_one_line(setting.key) + ": " + on_one_line(setting.value) +
                      " of " + shown_flag(setting.flag) + " replaces " +
                      on_one_line(earlier->value) + " of " + shown_flag(earlier->flag));
    *earlier = setting;
  }
  const auto depth = [](const Setting& setting) {
    return std::count(setting.key.begin(), setting.key.end(), '.');
  };
  std::stable_sort(kept.begin(), kept.end(),
                   [&](const Setting& a, const Setting& b) { return depth(a) < depth(b); });
  return kept;
}

std::optional<std::int64_t> count_at(const JsonDocument& document, const char* key) {
  const Place place = find_place(document, key);
  const bool is_count =
      place.value != nullptr && place.value->isInt64() && place.value->asInt64() > 0;
  return is_count ? std::optional(place.value->asInt64()) : std::nullopt;
}

bool comes_from_flag(const JsonDocument& document, const char* key) {
  const Place place = find_place(document, key);
  return place.value != nullptr && !document.flag_of(*place.value).empty();
}

// Whether batch sizes that are given fit: those that are absent can be derived as whole numbers.
bool batch_fits(const JsonDocument& document, int ranks) {
  const auto train = count_at(document, kTrainBatch), micro = count_at(document, kMicroBatch),
             accumulation = count_at(document, kAccumulation);
  if (!train || (!micro && !accumulation)) return true;
  const std::int64_t per_rank = *train / ranks;
  if (*train % ranks != 0) return false;
  if (!micro) return per_rank % *accumulation == 0;
  if (!accumulation) return per_rank % *micro == 0;
  return per_rank % *micro == 0 && per_rank / *micro == *accumulation;
}

// Batch sizes of flags beside those of the file that contradict them: the file's give way, the
// accumulation first, since the training batch decides what is learned.
void drop_replaced_batch(JsonDocument& document, int ranks, std::vector<std::string>& lines) {
  bool any = false;
  for (const char* key : {kTrainBatch, kMicroBatch, kAccumulation})
    any = any || comes_from_flag(document, key);
  if (!any) return;
  for (const char* key : {kAccumulation, kTrainBatch, kMicroBatch}) {
    if (batch_fits(document, ranks)) return;
    if (comes_from_flag(document, key) || !count_at(document, key)) continue;
    // One of these two has to stay.
    const char* const partner = key == kTrainBatch ? kMicroBatch : kTrainBatch;
    if (key != kAccumulation && !count_at(document, partner)) continue;
    const Place place = find_place(document, key);
    lines.push_back("note: " + std::string(key) + ": " + text_of(document, *place.value) +
                    " of the file does not fit the batch sizes of the flags, and is derived");
    document.set(place.names, Json::Value(), "batch sizes");
  }
}

}  // namespace

Setting parse_setting(const std::string& text) {
  const std::size_t equals = text.find('=');
  SLUICE_CHECK(
      equals != std::string::npos && equals > 0,
      "--set: expected KEY=VALUE, as in --set optimizer.params.lr=1e-4, found " + quoted(text));
  const std::string flag = "--set " + text.substr(0, equals);
  const std::string value = text.substr(equals + 1);
  const bool is_section = value.starts_with('{') || value.starts_with('[');
  if (is_section && !parse_json_value(value))
    throw InvalidArgument(flag + ": the value begins as JSON and is not whole: " + quoted(value) +
                          "; close its brackets, and put it in single quotes for the shell");
  return {text.substr(0, equals), value, flag};
}

std::vector<std::string> apply_settings(JsonDocument& document, const LoadOptions& options) {
  std::vector<std::string> lines;
  for (const Setting& setting : effective(options.settings, lines)) apply(document, setting, lines);
  drop_replaced_batch(document, options.world_size, lines);
  return lines;
}

}  // namespace sluice::config
