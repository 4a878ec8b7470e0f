#include "stripe.hpp"

#include <fcntl.h>
#include <json/json.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <utility>

#include "manifest.hpp"
#include "sluice/base/error.hpp"
#include "store_files.hpp"

namespace sluice::offload {
namespace {

constexpr const char* kFormat = "sluice-stripe";

struct Label {
  std::string store_id;
  std::size_t part = 0;
  std::vector<std::string> directories;
  nvme::StripeLayout layout;
};

[[noreturn]] void throw_unusable(const std::string& path, const std::string& why) {
  throw StorageError(path, why +
                               ": it says over which directories a run is striped; restore it from "
                               "another directory of the run, or remove all of that run's files");
}

Label label_from(const Json::Value& root) {
  Label label;
  if (!root.isObject() || root["format"].asString() != kFormat || root["version"].asInt() != 1)
    throw InvalidArgument("has another format");
  label.store_id = root["store"].asString();
  label.part = root["part"].asUInt();
  std::vector<unsigned> weights;
  for (const Json::Value& entry : root["directories"]) {
    label.directories.push_back(entry["path"].asString());
    weights.push_back(entry["weight"].asUInt());
  }
  label.layout = nvme::StripeLayout(std::move(weights), root["chunk_bytes"].asUInt64());
  if (label.store_id.empty() || label.part >= label.directories.size() ||
      label.directories.size() < 2)
    throw InvalidArgument("contradicts itself");
  return label;
}

std::optional<Label> load_label(const std::string& directory) {
  const std::string path = label_path(directory);
  if (!file_exists(path)) return std::nullopt;
  if (!is_regular_file(path)) throw_unusable(path, "is not a regular file");
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  const std::string body = text.str();
  Json::CharReaderBuilder builder;
  Json::CharReaderBuilder::strictMode(&builder.settings_);
  const std::unique_ptr<Json::CharReader> reader(builder.newCharReader());
  Json::Value root;
  std::string why;
  try {
    if (!reader->parse(body.data(), body.data() + body.size(), &root, &why))
      throw InvalidArgument("is not JSON");
    return label_from(root);
  } catch (const Json::Exception&) {
    throw_unusable(path, "has a value of an unexpected type");
  } catch (const InvalidArgument& error) {
    throw_unusable(path, std::string("cannot be used (") + error.what() + ")");
  }
}

std::string absolute(const std::string& directory) {
  return std::filesystem::absolute(directory).lexically_normal().string();
}

bool same_directory(const std::string& a, const std::string& b) {
  std::error_code absent;
  return absolute(a) == absolute(b) || std::filesystem::equivalent(a, b, absent);
}

std::string list_of(const std::vector<std::string>& directories) {
  std::string text;
  for (const std::string& directory : directories) text += (text.empty() ? "" : ", ") + directory;
  return text;
}

std::string random_id() {
  std::random_device device;
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string id;
  for (int i = 0; i < 16; ++i) id += kDigits[device() % kDigits.size()];
  return id;
}

void check_labels(const Stripe& stripe, const Manifest& manifest) {
  if (stripe.store_id != manifest.store_id) {
    throw StorageError(label_path(stripe.first()),
                       std::string(stripe.store_id.empty() ? "is absent" : "is of another run") +
                           ", but what is committed is striped over several directories, and only "
                           "it says which: restore it");
  }
  for (std::size_t part = 1; part < stripe.directories.size(); ++part) {
    const std::string& directory = stripe.directories[part];
    if (!std::filesystem::is_directory(directory)) {
      throw StorageError(directory, "is absent, but has part " + std::to_string(part + 1) + " of " +
                                        std::to_string(stripe.directories.size()) +
                                        " of the run in " + stripe.first() +
                                        ": mount its drive there");
    }
    if (has_part(stripe, part)) continue;
    const std::optional<Label> label = load_label(directory);
    std::string found = "has no part of it";
    if (label)
      found = label->store_id == stripe.store_id
                  ? "has part " + std::to_string(label->part + 1)
                  : "has a part of another run, that in " + label->directories.front();
    throw StorageError(directory, "should have part " + std::to_string(part + 1) +
                                      " of the run in " + stripe.first() + ", but " + found +
                                      ": name the directories in the order in which the run was "
                                      "begun");
  }
}

Stripe stripe_from(Label label) {
  return {std::move(label.store_id), std::move(label.directories), std::move(label.layout)};
}

}  // namespace

Stripe new_stripe(const SwapPlace& place) {
  Stripe stripe;
  stripe.directories = place.directories();
  SLUICE_CHECK(place.weights.empty() || place.weights.size() == stripe.directories.size(),
               std::to_string(place.weights.size()) + " weights for " +
                   std::to_string(stripe.directories.size()) + " directories");
  for (std::size_t i = 0; i < stripe.directories.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      SLUICE_CHECK(!same_directory(stripe.directories[i], stripe.directories[j]),
                   stripe.directories[i] +
                       " is named twice among the directories to stripe over: " +
                       "name one directory on each drive");
    }
  }
  if (place.further.empty()) return stripe;
  stripe.store_id = random_id();
  stripe.layout = nvme::StripeLayout(
      place.weights.empty() ? std::vector<unsigned>(stripe.directories.size(), 1) : place.weights,
      nvme::StripeLayout::kDefaultChunkBytes);
  return stripe;
}

Stripe stripe_in(const std::string& directory) {
  std::optional<Label> label = load_label(directory);
  if (!label) return {"", {directory}, {}};
  if (label->part != 0) {
    throw StorageError(directory, "has only part " + std::to_string(label->part + 1) + " of " +
                                      std::to_string(label->directories.size()) +
                                      " of what is striped over several drives: name " +
                                      label->directories.front() + ", where its manifest is");
  }
  Stripe stripe = stripe_from(*std::move(label));
  stripe.directories.front() = directory;
  return stripe;
}

Stripe stripe_of_committed(const std::string& directory, const Manifest& manifest) {
  Stripe stripe = stripe_in(directory);
  check_labels(stripe, manifest);
  return stripe;
}

Stripe stripe_of_committed(const SwapPlace& place, const Manifest& manifest) {
  Stripe stripe = stripe_in(place.directory);
  if (stripe.directories.size() != 1 + place.further.size()) {
    throw StorageError(place.directory,
                       stripe.directories.size() == 1
                           ? "holds a run that lies in this directory alone, not striped over " +
                                 list_of(place.directories()) +
                                 ": name this one only, or begin anew"
                           : "holds a run that is striped over " + list_of(stripe.directories) +
                                 ": name as many directories, in this order, or begin anew");
  }
  stripe.directories = place.directories();
  check_labels(stripe, manifest);
  return stripe;
}

void check_is_nobodys_part(const std::string& directory, const std::string& new_first) {
  const std::optional<Label> label = load_label(directory);
  if (!label || label->part == 0) return;
  const std::string& first = label->directories.front();
  if (same_directory(first, new_first)) return;
  const bool gone = !std::filesystem::is_directory(first);
  if (!gone) {
    const std::optional<Manifest> manifest = load_manifest(first);
    if (!manifest || manifest->store_id != label->store_id) return;
  }
  throw StorageError(
      directory,
      "has a part of the run in " + first +
          (gone ? ", which is not there to say whether it is needed: mount it, or remove " +
                      label_path(directory) + " to give that run up"
                : ": choose another directory, or remove that run (sluice nvme clean "
                  "--committed " +
                      first + ")"));
}

bool has_part(const Stripe& stripe, std::size_t part) {
  const std::string& directory = stripe.directories.at(part);
  if (!std::filesystem::is_directory(directory)) return false;
  const std::optional<Label> label = load_label(directory);
  return label && label->store_id == stripe.store_id && label->part == part;
}

std::string first_of_part(const std::string& directory) {
  const std::optional<Label> label = load_label(directory);
  return label && label->part != 0 ? label->directories.front() : "";
}

void write_labels(const Stripe& stripe) {
  if (stripe.store_id.empty()) return;
  Json::Value root;
  root["format"] = kFormat;
  root["version"] = 1;
  root["store"] = stripe.store_id;
  root["chunk_bytes"] = Json::UInt64{stripe.layout.chunk_bytes()};
  for (std::size_t i = 0; i < stripe.directories.size(); ++i) {
    Json::Value entry;
    entry["path"] = absolute(stripe.directories[i]);
    entry["weight"] = stripe.layout.weights()[i];
    root["directories"].append(entry);
  }
  for (std::size_t i = 0; i < stripe.directories.size(); ++i) {
    root["part"] = Json::UInt{static_cast<unsigned>(i)};
    replace_file(label_path(stripe.directories[i]),
                 Json::writeString(Json::StreamWriterBuilder(), root) + "\n", ManifestSync::fsync);
  }
}

}  // namespace sluice::offload
