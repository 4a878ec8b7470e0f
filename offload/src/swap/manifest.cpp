#include "swap/manifest.hpp"

#include <json/json.h>
#include <xxhash.h>
#if SLUICE_HAVE_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>  // XXH3_64bits is now the fastest that the processor has
#endif

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <optional>
#include <unordered_set>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/json/json_reader.hpp"
#include "swap/store_files.hpp"

namespace sluice::offload {
namespace {

constexpr std::string_view kFormat = "sluice-swap-store";
constexpr int kVersion = 1;
constexpr int kStripedVersion = 2;  // not for programs that would look into one directory only
constexpr std::string_view kTrailerPrefix = "xxh3-64:";
constexpr std::size_t kHexDigits = 16;                                         // of 64 bits
constexpr std::size_t kTrailerBytes = kTrailerPrefix.size() + kHexDigits + 1;  // and the line's end
constexpr std::size_t kMaxNameBytes = 255;

void append_hex(std::string& out, std::uint64_t value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (int shift = 60; shift >= 0; shift -= 4)
    out += kDigits[(value >> static_cast<unsigned>(shift)) & 15U];
}

// RFC 8259, section 7. Other bytes go through as they are.
void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20U) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04x", static_cast<unsigned>(c));
      out += escape.data();
    } else {
      out += c;
    }
  }
  out += '"';
}

std::string trailer_of(std::string_view body) {
  std::string trailer(kTrailerPrefix);
  append_hex(trailer, checksum_of(std::as_bytes(std::span(body.data(), body.size()))));
  trailer += '\n';
  return trailer;
}

[[noreturn]] void throw_unusable(const std::string& path, const std::string& what) {
  const std::string directory = path.substr(0, path.rfind('/'));
  throw StorageError(path, what + ": restore it from a copy, or " + how_to_start_over(directory));
}

std::uint64_t parse_hex(std::string_view digits) {
  std::uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    throw InvalidArgument("'" + std::string(digits) + "' is not a checksum");
  }
  return value;
}

const Json::Value& member(const Json::Value& object, const char* key) {
  if (!object.isObject() || !object.isMember(key)) {
    throw InvalidArgument(std::string("has no \"") + key + "\"");
  }
  return object[key];
}

Durability parse_durability(const std::string& name) {
  if (const auto durability = find_durability(name)) return *durability;
  throw InvalidArgument("has the unknown durability \"" + name + "\"");
}

ManifestShard parse_shard(const Json::Value& value) {
  ManifestShard shard;
  shard.spec.name = member(value, "name").asString();
  shard.spec.size_bytes = member(value, "size_bytes").asUInt64();
  shard.slot = member(value, "slot").asInt();
  const std::string digits = member(value, "checksums").asString();
  const std::uint64_t count = chunk_count(shard.spec.size_bytes);
  if (shard.slot < 0 || shard.slot >= kSlotCount || digits.size() / kHexDigits != count ||
      digits.size() % kHexDigits != 0) {
    throw InvalidArgument("shard \"" + shard.spec.name +
                          "\" has an impossible slot or checksum list");
  }
  shard.checksums.reserve(count);
  for (std::size_t at = 0; at < digits.size(); at += kHexDigits) {
    shard.checksums.push_back(parse_hex(std::string_view(digits).substr(at, kHexDigits)));
  }
  return shard;
}

void check_layout(const Json::Value& shards, const Manifest& manifest) {
  const std::vector<ShardSpec> specs = specs_of(manifest);
  check_shards(specs);
  const StoreLayout layout = layout_of(manifest);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (member(shards[static_cast<Json::ArrayIndex>(i)], "offset_bytes").asUInt64() !=
        layout.offset_bytes[i]) {
      throw InvalidArgument("shard \"" + specs[i].name +
                            "\" does not lie where its neighbours end");
    }
  }
}

Manifest from_json(const Json::Value& root) {
  if (member(root, "chunk_bytes").asUInt64() != kChecksumChunkBytes) {
    throw InvalidArgument("has checksums of chunks of another size");
  }
  Manifest manifest;
  manifest.step = member(root, "step").asInt64();
  manifest.durability = parse_durability(member(root, "durability").asString());
  manifest.metadata = member(root, "metadata").asString();
  if (root.isMember("store")) manifest.store_id = root["store"].asString();
  if (manifest.store_id.empty() != (root["version"].asInt() == kVersion))
    throw InvalidArgument("does not say over which directories it is striped");
  if (root.isMember("written_bytes")) manifest.written_bytes = root["written_bytes"].asUInt64();
  const Json::Value& shards = member(root, "shards");
  for (const Json::Value& shard : shards) manifest.shards.push_back(parse_shard(shard));
  check_layout(shards, manifest);
  return manifest;
}

}  // namespace

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string manifest_opening() {
  return "{\"format\": \"" + std::string(kFormat) + "\"";
}

std::string with_trailer(std::string body) {
  body += trailer_of(body);
  return body;
}

std::string_view checked_body(std::string_view text, const std::string& path) {
  if (text.empty()) throw_unusable(path, "is empty");
  const std::size_t body_bytes = text.size() - std::min(text.size(), kTrailerBytes);
  const std::string_view body = text.substr(0, body_bytes);
  const std::string_view trailer = text.substr(body_bytes);
  if (trailer.size() != kTrailerBytes || !trailer.starts_with(kTrailerPrefix) ||
      trailer.back() != '\n' || !body.ends_with('\n')) {
    throw_unusable(
        path,
        "is not the manifest of a swap store, or was cut off: its last line is not a checksum");
  }
  const std::string expected = trailer_of(body);
  if (trailer != expected) {
    throw_unusable(path, "is damaged: its text has the checksum " +
                             expected.substr(0, expected.size() - 1) + ", its last line says " +
                             std::string(trailer.substr(0, trailer.size() - 1)));
  }
  return body;
}

std::uint64_t chunk_count(std::uint64_t shard_bytes) {
  return ceil_div(shard_bytes, kChecksumChunkBytes);
}

StoreLayout layout_of(const Manifest& manifest) {
  return layout_of(specs_of(manifest),
                   manifest.store_id.empty() ? Placement::packed : Placement::striped);
}

StoreLayout layout_of(std::span<const ShardSpec> shards, Placement placement) {
  const std::uint64_t alignment =
      placement == Placement::striped ? kChecksumChunkBytes : kShardAlignment;
  StoreLayout layout;
  layout.offset_bytes.reserve(shards.size());
  for (const ShardSpec& shard : shards) {
    layout.offset_bytes.push_back(layout.file_bytes);
    layout.file_bytes = align_up(checked_add(layout.file_bytes, shard.size_bytes), alignment);
  }
  return layout;
}

void check_shards(std::span<const ShardSpec> shards) {
  SLUICE_CHECK(!shards.empty(), "a swap store needs at least one shard");
  std::unordered_set<std::string_view> names;
  for (const ShardSpec& shard : shards) {
    SLUICE_CHECK(!shard.name.empty() && shard.name.size() <= kMaxNameBytes,
                 "the name of a shard has " + std::to_string(shard.name.size()) +
                     " bytes; 1 to 255 are possible: \"" + shard.name.substr(0, 32) + "\"");
    SLUICE_CHECK(shard.size_bytes >= 1, "shard \"" + shard.name + "\" has no bytes");
    SLUICE_CHECK(names.insert(shard.name).second, "two shards are named \"" + shard.name + "\"");
  }
}

std::uint64_t manifest_disk_bytes(std::span<const ShardSpec> shards) {
  constexpr std::uint64_t kHeadBytes = 65 * kKiB;
  constexpr std::uint64_t kShardBytes = 128;  // keys and numbers
  constexpr std::uint64_t kEscapedBytes = 6;  // "\u0001", the longest form of one byte
  std::uint64_t text_bytes = kHeadBytes;
  for (const ShardSpec& shard : shards) {
    text_bytes += kShardBytes + kEscapedBytes * shard.name.size() +
                  kHexDigits * chunk_count(shard.size_bytes);
  }
  return 2 * align_up(text_bytes, kShardAlignment);
}

std::string to_text(const Manifest& manifest) {
  const std::vector<ShardSpec> specs = specs_of(manifest);
  const StoreLayout layout = layout_of(manifest);

  std::string text;
  text.reserve(manifest_disk_bytes(specs) / 2);
  text += manifest_opening() + ", \"version\": " +
          std::to_string(manifest.store_id.empty() ? kVersion : kStripedVersion);
  if (!manifest.store_id.empty()) text += ", \"store\": \"" + manifest.store_id + "\"";
  text += ", \"written_bytes\": " + std::to_string(manifest.written_bytes);
  text += ",\n \"step\": " + std::to_string(manifest.step) + ", \"durability\": \"";
  text += name_of(manifest.durability);
  text += "\", \"chunk_bytes\": " + std::to_string(kChecksumChunkBytes) + ",\n \"metadata\": ";
  append_json_string(text, manifest.metadata);
  text += ",\n \"shards\": [";
  for (std::size_t i = 0; i < manifest.shards.size(); ++i) {
    const ManifestShard& shard = manifest.shards[i];
    text += i == 0 ? "\n  {\"name\": " : ",\n  {\"name\": ";
    append_json_string(text, shard.spec.name);
    text += ", \"size_bytes\": " + std::to_string(shard.spec.size_bytes);
    text += ", \"offset_bytes\": " + std::to_string(layout.offset_bytes[i]);
    text += ", \"slot\": " + std::to_string(shard.slot) + ", \"checksums\": \"";
    for (const std::uint64_t checksum : shard.checksums) append_hex(text, checksum);
    text += "\"}";
  }
  return with_trailer(std::move(text) + "\n ]}\n");
}

Manifest parse_manifest(std::string_view text, const std::string& path) {
  std::string why;
  const std::optional<Json::Value> parsed = parse_json(checked_body(text, path), &why);
  if (!parsed) throw_unusable(path, "is not JSON (" + why + ")");
  const Json::Value& root = *parsed;
  try {
    if (member(root, "format").asString() != kFormat) {
      throw_unusable(path, "is not the manifest of a swap store: its format is \"" +
                               root["format"].asString() + "\"");
    }
    const int version = member(root, "version").asInt();
    if (version != kVersion && version != kStripedVersion) {
      throw StorageError(path, "has the format version " + std::to_string(version) +
                                   ", this program reads versions up to " +
                                   std::to_string(kStripedVersion) +
                                   ": use the version of Sluice that wrote it");
    }
    return from_json(root);
  } catch (const Json::Exception& error) {
    throw_unusable(path, std::string("has a value of an unexpected type (") + error.what() + ")");
  } catch (const InvalidArgument& error) {
    throw_unusable(path, std::string("cannot be used: ") + error.what());
  }
}

std::vector<ShardSpec> specs_of(const Manifest& manifest) {
  std::vector<ShardSpec> specs;
  specs.reserve(manifest.shards.size());
  for (const ManifestShard& shard : manifest.shards) specs.push_back(shard.spec);
  return specs;
}

}  // namespace sluice::offload
