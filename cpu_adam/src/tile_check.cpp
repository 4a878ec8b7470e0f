#include "tile_check.hpp"

#include <array>
#include <cstdio>
#include <functional>
#include <limits>
#include <span>
#include <string>

#include "constants.hpp"
#include "sluice/base/error.hpp"

namespace sluice::cpu_adam {

namespace {

constexpr const char* kMomentNames[kMostMoments] = {"moment 1", "moment 2", "moment 3"};

// One of a tile's spans.
struct Stream {
  const char* name;
  const std::byte* begin;
  std::size_t count;
  std::size_t element_bytes;
};

// The spans of a tile that the optimizer uses.
class Streams {
 public:
  Streams(const OptimizerConfig& config, const Tile& tile) {
    if (const auto* split = std::get_if<SplitMaster>(&tile.master)) {
      add("the weight of the split master", split->weight);
      add("the low half of the split master", split->low);
    } else {
      add("master", std::get<std::span<float>>(tile.master));
    }
    for (std::size_t k = 0; k < moment_count(config); ++k)
      std::visit([&](auto moment) { add(kMomentNames[k], moment); }, tile.moments[k]);
    std::visit([&](auto gradient) { add("gradient", gradient); }, tile.gradient);
    std::visit(
        [&]<class W>(W weight) {
          if constexpr (!std::is_same_v<W, std::monostate>) add("weight", weight);
        },
        tile.weight);
  }

  void check_lengths(std::size_t elements) const {
    // A longer length comes from a mistake, such as an underflow; its addresses would wrap.
    constexpr std::size_t kMost = std::numeric_limits<std::ptrdiff_t>::max() / sizeof(float);
    SLUICE_CHECK(elements <= kMost,
                 "master has " + std::to_string(elements) + " elements, more than memory can hold");
    for (const Stream& of : used())
      SLUICE_CHECK(of.count == elements, std::string(of.name) + " has " + std::to_string(of.count) +
                                             " elements, master has " + std::to_string(elements));
  }
  // Throws when two spans, each taken as `elements` long, share memory.
  void check_apart(std::size_t elements) const {
    for (const Stream& a : used())
      for (const Stream* b = streams_.data(); b != &a; ++b) check_apart(*b, a, elements);
  }

 private:
  std::span<const Stream> used() const { return {streams_.data(), count_}; }
  template <class T>
  void add(const char* name, std::span<T> values) {
    streams_[count_++] = {name, reinterpret_cast<const std::byte*>(values.data()), values.size(),
                          sizeof(T)};
  }
  static void check_apart(const Stream& a, const Stream& b, std::size_t elements) {
    // std::less orders pointers into different arrays, which `<` does not.
    const std::less<const std::byte*> before;
    const bool overlap = elements > 0 && before(a.begin, b.begin + elements * b.element_bytes) &&
                         before(b.begin, a.begin + elements * a.element_bytes);
    SLUICE_CHECK(!overlap, std::string(a.name) + " and " + b.name + " share memory (" +
                               text_of(a, elements) + " and " + text_of(b, elements) +
                               "); every span needs its own");
  }
  static std::string text_of(const Stream& of, std::size_t elements) {
    char text[64];
    std::snprintf(text, sizeof text, "%zu bytes at %p", elements * of.element_bytes,
                  static_cast<const void*>(of.begin));
    return text;
  }
  std::array<Stream, 4 + kMostMoments> streams_;
  std::size_t count_ = 0;
};

// The optimizer and its number of moments, for messages.
std::string needs_of(const OptimizerConfig& config) {
  switch (rule_of(config)) {
    case Rule::adam:
      return "Adam has 2 moments";
    case Rule::amsgrad:
      return "Adam with amsgrad has 3 moments";
    case Rule::adagrad:
      return "Adagrad has 1 moment";
    case Rule::lion:
      return "Lion has 1 moment";
    case Rule::momentum:
      return "SGD with momentum has 1 moment";
    case Rule::sgd:
      break;
  }
  return "SGD without momentum has no moments";
}

std::string type_of(const MomentSpan& moment) {
  return std::holds_alternative<std::span<float>>(moment) ? "fp32" : "bf16";
}

// Throws unless the tile has exactly the optimizer's moments, all of one type.
void check_moments(const OptimizerConfig& config, const Tile& tile, std::size_t elements) {
  const std::size_t moments = moment_count(config);
  for (std::size_t k = 0; k < kMostMoments; ++k) {
    const std::string name = kMomentNames[k];
    const std::size_t count =
        std::visit([](auto moment) { return moment.size(); }, tile.moments[k]);
    if (k >= moments) {
      SLUICE_CHECK(count == 0, needs_of(config) + "; the tile's " + name + " has " +
                                   std::to_string(count) + " elements");
      continue;
    }
    SLUICE_CHECK(tile.moments[k].index() == tile.moments[0].index(),
                 name + " is of another type than moment 1: " + type_of(tile.moments[k]) +
                     " beside " + type_of(tile.moments[0]));
    SLUICE_CHECK(count > 0 || elements == 0, needs_of(config) + "; the tile lacks " + name);
    SLUICE_CHECK(elements > 0 || count == 0, "the tile has no master, and a " + name + " of " +
                                                 std::to_string(count) + " elements");
  }
}

template <class Spans>
bool begins_where_ends(const Spans& a, const Spans& b) {
  if (a.index() != b.index()) return false;
  return std::visit(
      [&]<class S>(const S& first) {
        const S& second = std::get<S>(b);
        if constexpr (std::is_same_v<S, SplitMaster>) {
          return first.weight.data() + first.weight.size() == second.weight.data() &&
                 first.low.data() + first.low.size() == second.low.data();
        } else if constexpr (std::is_same_v<S, std::monostate>) {
          return true;
        } else {
          return first.data() + first.size() == second.data();
        }
      },
      a);
}

}  // namespace

std::size_t elements_of(const MasterSpan& master) {
  if (const auto* fp32 = std::get_if<std::span<float>>(&master)) return fp32->size();
  return std::get<SplitMaster>(master).weight.size();
}

std::size_t checked_count(const OptimizerConfig& config, const Tile& tile) {
  const std::size_t elements = elements_of(tile.master);
  check_moments(config, tile, elements);
  SLUICE_CHECK(!std::holds_alternative<SplitMaster>(tile.master) ||
                   std::holds_alternative<std::monostate>(tile.weight),
               "a split master has its weight in itself; give no other");
  Streams(config, tile).check_lengths(elements);
  return elements;
}

void check_apart(const OptimizerConfig& config, const Tile& tile, std::size_t elements) {
  Streams(config, tile).check_apart(elements);
}

bool continues(const Tile& a, const Tile& b) {
  const bool rounded = std::holds_alternative<std::span<Bf16>>(a.moments[0]);
  if (rounded && a.first_element + elements_of(a.master) != b.first_element) return false;
  if (!begins_where_ends(a.master, b.master) || !begins_where_ends(a.gradient, b.gradient) ||
      !begins_where_ends(a.weight, b.weight))
    return false;
  for (std::size_t k = 0; k < kMostMoments; ++k)
    if (!begins_where_ends(a.moments[k], b.moments[k])) return false;
  return true;
}

}  // namespace sluice::cpu_adam
