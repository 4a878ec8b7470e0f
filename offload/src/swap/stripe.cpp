#include "swap/stripe.hpp"

#include <json/json.h>
#include <climits>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/file/paths.hpp"
#include "sluice/base/json/json_reader.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/text.hpp"
#include "sluice/base/written.hpp"
#include "swap/manifest.hpp"
#include "swap/store_files.hpp"

namespace sluice::offload {
namespace {

constexpr const char* kFormat = "sluice-stripe";

// Enough for the longest list of the longest paths that anyone has; more is no label.
constexpr std::uint64_t kMaxLabelBytes = kMiB;
constexpr std::uint64_t kMaxChunkBytes = kGiB;

struct Label {
  std::string store_id;
  std::size_t part = 0;
  bool committed = false;
  std::vector<std::string> directories;
  nvme::StripeLayout layout;

  const std::string& first() const { return directories.front(); }
};

[[noreturn]] void throw_unusable(const std::string& path, const std::string& why) {
  throw StorageError(path,
                     why +
                         ": it says over which directories a run is striped; copy that of "
                         "another directory of the run and set its \"part\" (the first is 0), or "
                         "remove all of that run's files");
}

void require(bool good, const char* what_is_wrong) {
  if (!good) throw InvalidArgument(what_is_wrong);
}

Label label_from(const Json::Value& root) {
  Label label;
  require(root.isObject() && root["format"].asString() == kFormat && root["version"].asInt() == 1,
          "another format");
  label.store_id = root["store"].asString();
  label.part = root["part"].asUInt();
  label.committed = root["committed"].asBool();
  const Json::Value& entries = root["directories"];
  require(entries.isArray() && entries.size() >= 2 && entries.size() <= kMaxParts,
          "not 2 to 64 directories");
  std::vector<unsigned> weights;
  for (const Json::Value& entry : entries) {
    label.directories.push_back(entry["path"].asString());
    weights.push_back(entry["weight"].asUInt());
    require(!label.directories.back().empty() && label.directories.back().size() < PATH_MAX,
            "a directory without a usable path");
  }
  const std::uint64_t chunk_bytes = root["chunk_bytes"].asUInt64();
  require(chunk_bytes <= kMaxChunkBytes, "chunks of more than 1 GiB");
  label.layout = nvme::StripeLayout(std::move(weights), chunk_bytes);
  require(!label.store_id.empty() && label.part < label.directories.size(),
          "a part that there is not");
  return label;
}

std::string read_label(const std::string& path) {
  if (!is_regular_file(path)) throw_unusable(path, "is not a regular file");
  if (file_length_bytes(path) > kMaxLabelBytes) throw_unusable(path, "is far too long");
  return read_regular_file(path, kMaxLabelBytes);
}

std::optional<Label> load_label(const std::string& directory) {
  const std::string path = label_path(directory);
  if (!file_exists(path)) return std::nullopt;
  const std::string body = read_label(path);
  const std::optional<Json::Value> root = parse_json(body);
  try {
    require(root.has_value(), "it is not JSON");
    return label_from(*root);
  } catch (const Json::Exception&) {
    throw_unusable(path, "cannot be used (a value of an unexpected type)");
  } catch (const InvalidArgument& error) {
    throw_unusable(path, std::string("cannot be used (") + error.what() + ")");
  }
}

std::string part_text(std::size_t part, std::size_t parts) {
  return "part " + std::to_string(part + 1) + " of " + std::to_string(parts);
}

bool is_part_of(const std::optional<Label>& label, const std::string& store_id, std::size_t part) {
  return label && label->store_id == store_id && label->part == part;
}

// The state of the label's store by its first directory, if that directory is there under this
// name.
enum class AtFirst { unknown, committed, given_up };
AtFirst state_at(const std::string& first, const Label& label) {
  if (!directory_exists(first)) return AtFirst::unknown;
  const std::optional<Label> there = load_label(first);
  if (!is_part_of(there, label.store_id, 0)) return AtFirst::unknown;
  const std::optional<Manifest> manifest = load_manifest(first);
  return manifest && manifest->store_id == label.store_id ? AtFirst::committed : AtFirst::given_up;
}

// A label that cannot be read is none here: the directory is one of several that are looked at.
std::optional<Label> label_if_readable(const std::string& directory) {
  try {
    return load_label(directory);
  } catch (const StorageError&) {
    return std::nullopt;
  } catch (const IoError&) {
    return std::nullopt;
  }
}

// The first of `directories` that has each part of a store now; empty where none has it.
std::vector<std::string> find_parts(const std::string& store_id, std::size_t parts,
                                    const std::vector<std::string>& directories) {
  std::vector<std::string> found(parts);
  for (const std::string& directory : directories) {
    const std::optional<Label> label = label_if_readable(directory);
    if (!label || label->store_id != store_id || label->part >= parts) continue;
    if (found[label->part].empty()) found[label->part] = directory;
  }
  return found;
}

// Where each part of the label's store is now: the first in that of `place`, the others in any
// other directory of `place`, or else where the label says.
std::vector<std::string> places_now(const Label& label, const SwapPlace& place) {
  std::vector<std::string> now =
      find_parts(label.store_id, label.directories.size(), place.further);
  now.front() = place.directory;
  for (std::size_t part = 1; part < now.size(); ++part)
    if (now[part].empty()) now[part] = label.directories[part];
  return now;
}

// `otherwise`: where not all parts are found.
std::string order_text(const std::vector<std::string>& found, const std::string& otherwise) {
  const bool all = std::find(found.begin(), found.end(), "") == found.end();
  return all ? "name the directories in the order " + join(found, ", ") : otherwise;
}

// Behind the other ways out.
std::string loses_text(const std::string& directory) {
  return "; sluice nvme clean --committed " + directory + " loses the run";
}

// A first directory whose label names another one that is there as well is a copy of it.
bool is_copy(const std::string& directory, const Label& label) {
  return !same_directory(directory, label.first()) && directory_exists(label.first()) &&
         is_part_of(load_label(label.first()), label.store_id, 0);
}

void check_is_no_copy(const std::string& directory, const Label& label) {
  if (!is_copy(directory, label)) return;
  throw StorageError(directory, "is a copy of " + label.first() +
                                    ", to which the other parts of the run belong: name that one");
}

// The label in a store's first directory.
Label first_label(const std::string& directory, const std::string& store_id) {
  std::optional<Label> label = load_label(directory);
  if (is_part_of(label, store_id, 0)) return *std::move(label);
  throw StorageError(
      label_path(directory),
      std::string(label ? "is of another run" : "is absent") +
          ", but what is committed is striped over several directories, and it says which: "
          "copy that of another directory of the run and set its \"part\" to 0");
}

void check_part(const Stripe& stripe, std::size_t part) {
  const std::string& directory = stripe.directories[part];
  const std::string wanted =
      part_text(part, stripe.directories.size()) + " of the run in " + stripe.first();
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(directory, error);
  if (error && status.type() != std::filesystem::file_type::not_found)
    throw IoError(error.value(), "stat", directory, 0, 0, "it has " + wanted);
  if (!std::filesystem::is_directory(status))
    throw StorageError(directory,
                       "is absent, but has " + wanted +
                           ": mount its drive there, or, if it is mounted elsewhere now, "
                           "resume the run once with its new place in \"nvme_path\"");
  const std::optional<Label> label = load_label(directory);
  if (!label && has_part_files(directory)) {
    // The file names say that it is a part; lengths and checksums say whether it is this one.
    log(LogLevel::warn,
        label_path(directory) + " is absent; the files beside it are taken for " + wanted);
    return;
  }
  if (!label) {
    throw StorageError(directory, "should have " + wanted +
                                      ", but has none: mount its drive there, or name the "
                                      "directories in the order in which the run was begun");
  }
  if (is_part_of(label, stripe.store_id, part)) {
    if (label->layout.weights() == stripe.layout.weights() &&
        label->layout.chunk_bytes() == stripe.layout.chunk_bytes())
      return;
    throw StorageError(label_path(directory),
                       "and " + label_path(stripe.first()) +
                           " say different weights or chunks: one of them was "
                           "changed; copy the right one and set its \"part\"");
  }
  throw StorageError(
      directory, "should have " + wanted + ", but has " +
                     (label->store_id == stripe.store_id
                          ? "part " + std::to_string(label->part + 1) + ": " +
                                order_text(find_parts(stripe.store_id, stripe.directories.size(),
                                                      stripe.directories),
                                           "name the directories in the order in which the run "
                                           "was begun")
                          : "a part of another run, that in " + label->first() +
                                ": name the right directory"));
}

Stripe checked_stripe(Label label, std::vector<std::string> directories) {
  Stripe stripe{std::move(label.store_id), std::move(directories), std::move(label.layout)};
  for (std::size_t part = 1; part < stripe.directories.size(); ++part) check_part(stripe, part);
  return stripe;
}

// Why the part in `directory` is needed; empty: it is not, or there is none.
std::string why_part_is_needed(const std::string& directory, const std::string& new_first) {
  const std::optional<Label> label = load_label(directory);
  if (!label) {
    if (!has_part_files(directory)) return "";
    return "has files of a part of a striped run, and " + label_path(directory) +
           " is absent, which says of which: choose another directory" + loses_text(directory);
  }
  if (label->part == 0) return "";
  const std::size_t count = label->directories.size();
  const std::string what = "has " + part_text(label->part, count) + " of the run ";
  std::vector<std::string> places{label->first(), new_first};
  places.insert(places.end(), label->directories.begin(), label->directories.end());
  const std::vector<std::string> found = find_parts(label->store_id, count, places);
  for (const std::string& first : {label->first(), new_first, found.front()}) {
    const AtFirst state = first.empty() ? AtFirst::unknown : state_at(first, *label);
    if (state == AtFirst::given_up) return "";
    if (state == AtFirst::committed)
      return what +
             (same_directory(first, label->first()) ? "in " + first
                                                    : "that is in " + first + " now") +
             ": " + order_text(found, "name that directory first") + loses_text(first);
  }
  if (!label->committed) return "";
  const std::string away =
      same_directory(directory, label->first())
          ? "that began in this directory: drives are mounted elsewhere than before; name the "
            "directory with part 1 first"
          : "in " + label->first() +
                ", which is not there now: mount its drive, or name the directory with part 1 "
                "first if it is mounted elsewhere";
  return what + away + loses_text(directory);
}

}  // namespace

Stripe stripe_to_read(const SwapPlace& place, const Manifest& manifest) {
  if (manifest.store_id.empty()) return {"", {place.directory}, {}};
  Label label = first_label(place.directory, manifest.store_id);
  check_is_no_copy(place.directory, label);
  std::vector<std::string> directories = places_now(label, place);
  return checked_stripe(std::move(label), std::move(directories));
}

Stripe stripe_of_committed(const SwapPlace& place, const Manifest& manifest) {
  if (manifest.store_id.empty()) {
    if (place.further.empty()) return {"", {place.directory}, {}};
    throw StorageError(place.directory,
                       "holds a run that lies in this directory alone, not striped over " +
                           join(place.directories(), ", ") + ": name this one only, or begin anew");
  }
  Label label = first_label(place.directory, manifest.store_id);
  if (label.directories.size() != 1 + place.further.size()) {
    throw StorageError(place.directory, "holds a run that is striped over " +
                                            join(label.directories, ", ") +
                                            ": name as many directories, in this order, or begin "
                                            "anew elsewhere");
  }
  check_is_no_copy(place.directory, label);
  return checked_stripe(std::move(label), place.directories());
}

void warn_if_moved(const Stripe& stripe) {
  if (!stripe.striped()) return;
  const std::optional<Label> label = load_label(stripe.first());
  if (!label || same_directory(stripe.first(), label->first())) return;
  const std::vector<std::string> further(stripe.directories.begin() + 1, stripe.directories.end());
  log(LogLevel::warn, stripe.first() + " was " + label->first() +
                          " when the run had it: its other parts are read where they were then, " +
                          join(further, ", "));
}

void write_labels(const Stripe& stripe, LabelState state) {
  if (!stripe.striped()) return;
  Json::Value root;
  root["format"] = kFormat;
  root["version"] = 1;
  root["store"] = stripe.store_id;
  root["committed"] = state == LabelState::committed;
  root["chunk_bytes"] = Json::UInt64{stripe.layout.chunk_bytes()};
  for (std::size_t i = 0; i < stripe.directories.size(); ++i) {
    Json::Value entry;
    entry["path"] = absolute_path(stripe.directories[i]);
    entry["weight"] = stripe.layout.weights()[i];
    root["directories"].append(entry);
  }
  Json::StreamWriterBuilder writer;
  writer["emitUTF8"] = true;  // a name that is no UTF-8 stays as it is
  for (std::size_t i = 0; i < stripe.directories.size(); ++i) {
    root["part"] = Json::UInt{static_cast<unsigned>(i)};
    replace_file(label_path(stripe.directories[i]), Json::writeString(writer, root) + "\n",
                 {.mode = kStoreFileMode, .sync = FileSync::fsync, .advice_if_full = "make space"});
    sync_path(stripe.directories[i]);
  }
}

void follow_moved_parts(const SwapPlace& place) {
  std::optional<Label> label = label_if_readable(place.directory);
  if (!label || label->part != 0 || is_copy(place.directory, *label)) return;
  std::vector<std::string> now = places_now(*label, place);
  if (std::equal(now.begin(), now.end(), label->directories.begin(), same_directory)) return;
  for (std::size_t part = 1; part < now.size(); ++part)
    if (!is_part_of(label_if_readable(now[part]), label->store_id, part)) return;
  log(LogLevel::info, place.directory + ": noted where its drives are mounted now, " +
                          join(now, ", ") + " (before: " + join(label->directories, ", ") + ")");
  write_labels({std::move(label->store_id), std::move(now), std::move(label->layout)},
               label->committed ? LabelState::committed : LabelState::new_store);
}

void check_is_nobodys_part(const std::string& directory, const std::string& new_first) {
  const std::string why = why_part_is_needed(directory, new_first);
  if (!why.empty()) throw StorageError(directory, why);
}

void check_is_no_part_of_a_run_that_is_there(const std::string& directory) {
  const std::optional<Label> label = load_label(directory);
  if (!label || label->part == 0) return;
  const std::vector<std::string> found =
      find_parts(label->store_id, label->directories.size(), label->directories);
  for (const std::string& first : {label->first(), found.front()}) {
    if (!first.empty() && state_at(first, *label) == AtFirst::committed)
      check_is_nobodys_part(directory, directory);
  }
}

void check_is_no_further_part(const std::string& directory) {
  if (!directory_exists(directory)) return;
  const std::optional<Label> label = load_label(directory);
  if (label && label->part != 0 && label->committed) check_is_nobodys_part(directory, directory);
}

std::vector<std::string> directories_to_clear(const std::string& directory,
                                              std::vector<std::string>& missing) {
  std::vector<std::string> directories;
  const std::optional<Label> label = load_label(directory);
  if (label && label->part == 0) {
    check_is_no_copy(directory, *label);
    for (std::size_t part = 1; part < label->directories.size(); ++part) {
      const std::string& further = label->directories[part];
      const std::optional<Label> there =
          directory_exists(further) ? load_label(further) : std::nullopt;
      (is_part_of(there, label->store_id, part) ? directories : missing).push_back(further);
    }
  }
  directories.push_back(directory);
  return directories;
}

}  // namespace sluice::offload
