#include <hwy/cache_control.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "constants.hpp"
#include "finite_check.hpp"
#include "kernels.hpp"
#include "rounding.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "tile_arguments.hpp"
#include "tile_check.hpp"

namespace sluice::cpu_adam {

namespace {

// Elements per unit of work of step(): 1.75 MiB of fp32 states with 16-bit gradient and weight.
// Large enough to hide its start, small enough that the threads end together.
constexpr std::size_t kChunk = 65'536;

// From this many elements on (28 MiB of states, gradient and weight), the weight leaves a core's
// caches anyway before the copy to the device reads it.
constexpr std::size_t kStreamingCount = 1'048'576;
constexpr std::uintptr_t kStreamingAlignment = 64;
// In a smaller tile, the lines at both ends, shared with neighbouring tiles, cost more than the
// other lines gain.
constexpr std::size_t kStreamingTile = 256;

// Elements from number `first` on that one rounding key serves: it changes at multiples of 2^32.
constexpr std::uint64_t left_of_key(std::uint64_t first) {
  return (std::uint64_t{1} << 32U) - static_cast<std::uint32_t>(first);
}

// Returns whether every value that was written is finite.
bool run_on(StepFunction function, const StepConstants& constants, const TileArguments& run,
            const StateLayout& layout) {
  return function(constants, run) || first_non_finite(run, layout) == run.count;
}

// A checked tile: the function to run and its memory. Any thread may run parts of it.
struct TilePlan {
  const StepConstants* constants;
  StepFunction function;
  TileArguments arguments;
  StateLayout layout;
  std::uint64_t first_element;

  std::size_t count() const { return arguments.count; }

  // The run of `count` elements from `first` on, or as many of them as one rounding key serves.
  TileArguments run_at(const Step& step, std::size_t first, std::size_t count) const {
    TileArguments out = advanced(arguments, layout, first);
    out.rounding = rounding_key(step, first_element + first);
    out.count = std::min(count, left_of_key(first_element + first));
    return out;
  }

  // Returns whether every value that was written is finite.
  bool run(const Step& step, std::size_t first, std::size_t count) const {
    bool finite = true;
    while (count > 0) {
      const TileArguments part = run_at(step, first, count);
      finite = run_whole(part) && finite;
      first += part.count;
      count -= part.count;
    }
    return finite;
  }

 private:
  bool run_whole(const TileArguments& run) const {
    const std::size_t count = run.count;
    if (run.store == WeightStore::cached) return run_part(run, 0, count, WeightStore::cached);
    // Streams whole lines only. A line written both ways would go to memory twice.
    const std::size_t line = kStreamingAlignment / size_of(run.weight_type);
    const std::size_t head = std::min(count, count_to_aligned(run));
    const std::size_t body = align_down(count - head, line);
    bool finite = run_part(run, 0, head, WeightStore::cached);
    finite = run_part(run, head, body, WeightStore::streaming) && finite;
    return run_part(run, head + body, count - head - body, WeightStore::cached) && finite;
  }
  bool run_part(const TileArguments& run, std::size_t first, std::size_t count,
                WeightStore store) const {
    if (count == 0) return true;
    TileArguments part = advanced(run, layout, first);
    part.count = count;
    part.store = store;
    return run_on(function, *constants, part, layout);
  }
  // Elements before the next address of the weight that is aligned for streaming stores.
  static std::size_t count_to_aligned(const TileArguments& run) {
    const std::size_t over = reinterpret_cast<std::uintptr_t>(run.weight) % kStreamingAlignment;
    return over == 0 ? 0 : (kStreamingAlignment - over) / size_of(run.weight_type);
  }
};

constexpr std::size_t moment_bytes(bool bf16_moments) {
  return bf16_moments ? sizeof(Bf16) : sizeof(float);
}

StepFunction step_function(const Kernel& kernel, Rule rule, const StateLayout& layout) {
  return kernel.step[static_cast<std::size_t>(rule)][static_cast<std::size_t>(layout.master)]
                    [layout.moment_bytes == sizeof(Bf16) ? 1 : 0];
}

TilePlan plan_of(const Kernel& kernel, const OptimizerConfig& config,
                 const StepConstants& constants, const Tile& tile) {
  StateLayout layout{.moments = moment_count(config)};
  // Every field is set here or below. Zeroing the whole struct first, which compilers do with a
  // string instruction, would cost more than all the rest.
  TileArguments arguments;
  arguments.low = nullptr;
  arguments.weight = nullptr;
  arguments.store = WeightStore::cached;
  arguments.rounding = {};
  arguments.count = elements_of(tile.master);
  if (const auto* fp32 = std::get_if<std::span<float>>(&tile.master)) {
    arguments.master = fp32->data();
  } else {
    const auto& split = std::get<SplitMaster>(tile.master);
    layout.master = MasterLayout::split;
    arguments.master = split.weight.data();
    arguments.low = split.low.data();
  }
  for (std::size_t k = 0; k < kMostMoments; ++k) {
    std::visit([&](auto moment) { arguments.moments[k] = moment.data(); }, tile.moments[k]);
  }
  layout.moment_bytes = moment_bytes(std::holds_alternative<std::span<Bf16>>(tile.moments[0]));
  arguments.gradient_type = static_cast<DType>(tile.gradient.index());
  std::visit([&](auto gradient) { arguments.gradient = gradient.data(); }, tile.gradient);
  arguments.weight_type = static_cast<WeightType>(tile.weight.index());
  std::visit(
      [&]<class W>(W weight) {
        if constexpr (!std::is_same_v<W, std::monostate>) arguments.weight = weight.data();
      },
      tile.weight);
  const StepFunction function = step_function(kernel, rule_of(config), layout);
  return {&constants, function, arguments, layout, tile.first_element};
}

// Whether to stream the weight: in a large step, for a weight whose addresses streaming stores can
// reach.
bool should_stream(const TilePlan& plan, std::size_t elements_of_step) {
  const std::size_t bytes = size_of(plan.arguments.weight_type);
  return elements_of_step >= kStreamingCount && plan.count() >= kStreamingTile && bytes > 0 &&
         reinterpret_cast<std::uintptr_t>(plan.arguments.weight) % bytes == 0;
}

// All tiles of a step, end to end, in chunks of equal size for any sizes of the tiles. Tiles that
// continue one another are one place. Places are small, because with many tiles they are written
// and read again at every step.
class StepPlan {
 public:
  // Checks every tile, on the executor's threads.
  StepPlan(const Kernel& kernel, std::span<const Group> groups, const Step& step,
           Executor& executor)
      : kernel_(kernel), groups_(groups), step_(step) {
    std::size_t tiles = 0;
    for (const Group& group : groups) tiles += group.tiles.size();
    places_.reserve(tiles);
    begins_.reserve(tiles);
    constants_.reserve(groups.size());
    for (const Group& group : groups) {
      for (const Tile& tile : group.tiles)
        places_.push_back({&tile, 0, static_cast<std::uint32_t>(constants_.size()), false});
      constants_.push_back(constants_of_group(constants_.size()));
    }
    check_places(executor, [&](std::size_t t) {
      Place& place = places_[t];
      prefetch_ahead_of(t);
      place.count = checked_count(config_of(place), *place.tile);
      place.continues = t > 0 && places_[t - 1].group == place.group &&
                        continues(*places_[t - 1].tile, *place.tile);
    });
    join_places();
    check_places(executor, [&](std::size_t t) {
      prefetch_ahead_of(t);
      check_apart(config_of(places_[t]), *places_[t].tile, places_[t].count);
    });
    for (const Place& place : places_) {
      begins_.push_back(elements_);
      elements_ = checked_add(elements_, place.count);
    }
  }

  std::size_t chunks() const { return ceil_div(elements_, kChunk); }

  // The first byte of a chunk's master.
  const void* memory_of(std::size_t chunk) const {
    const std::size_t t = place_at(chunk * kChunk);
    const std::size_t first = chunk * kChunk - begins_[t];
    const MasterSpan& master = places_[t].tile->master;
    if (const auto* fp32 = std::get_if<std::span<float>>(&master)) return fp32->data() + first;
    return std::get<SplitMaster>(master).weight.data() + first;
  }

  // Returns whether every value that was written is finite.
  bool run(std::size_t chunk) const {
    bool finite = true;
    std::size_t at = chunk * kChunk;
    const std::size_t end = std::min(at + kChunk, elements_);
    for (std::size_t t = place_at(at); at < end; ++t) {
      const std::size_t first = at - begins_[t];
      const std::size_t count = std::min(places_[t].count - first, end - at);
      if (count == 0) continue;
      const Place& place = places_[t];
      if (t + 1 < places_.size()) prefetch(*places_[t + 1].tile);
      TilePlan plan = plan_of(kernel_, config_of(place), constants_[place.group], *place.tile);
      plan.arguments.count = place.count;
      if (should_stream(plan, elements_)) plan.arguments.store = WeightStore::streaming;
      finite = plan.run(step_, first, count) && finite;
      at += count;
    }
    hwy::FlushStream();  // before a thread that waits for this one reads the weight
    return finite;
  }

 private:
  static constexpr std::size_t kPlacesPerTask = 256;
  // Prefetches a whole Tile: with many small tiles, waiting for the next one would show.
  static void prefetch(const Tile& tile) {
    const auto* const begin = reinterpret_cast<const std::byte*>(&tile);
    for (std::size_t at = 0; at < sizeof(Tile); at += 64) hwy::Prefetch(begin + at);
  }
  // Tiles to prefetch ahead while checking: checking that many takes about one memory latency.
  static constexpr std::size_t kChecksAhead = 16;
  void prefetch_ahead_of(std::size_t t) const {
    if (t + kChecksAhead < places_.size()) prefetch(*places_[t + kChecksAhead].tile);
  }
  struct Place {
    const Tile* tile;
    std::size_t count;    // elements of this tile and of the tiles that continue it
    std::uint32_t group;  // index of its group
    bool continues;       // whether it continues the tile before
  };
  // The last place that begins at or before this element; empty places may begin there too.
  std::size_t place_at(std::size_t element) const {
    const auto after = std::upper_bound(begins_.begin(), begins_.end(), element);
    return static_cast<std::size_t>(after - begins_.begin()) - 1;
  }
  const OptimizerConfig& config_of(const Place& place) const { return groups_[place.group].config; }
  // Runs `check` for every place; an InvalidArgument names group and tile.
  template <class Check>
  void check_places(Executor& executor, const Check& check) const {
    executor.for_each(ceil_div(places_.size(), kPlacesPerTask), [&](std::size_t task) {
      const std::size_t first = task * kPlacesPerTask;
      const std::size_t end = std::min(first + kPlacesPerTask, places_.size());
      std::size_t t = first;
      try {
        for (; t < end; ++t) check(t);
      } catch (const InvalidArgument& error) {
        throw InvalidArgument(name_of(places_[t]) + error.what());
      }
    });
  }
  // Group and tile for a message; empty when there is only one tile.
  std::string name_of(const Place& place) const {
    const std::span<const Tile> tiles = groups_[place.group].tiles;
    if (groups_.size() == 1 && tiles.size() == 1) return "";
    return "group " + std::to_string(place.group) + ", tile " +
           std::to_string(place.tile - tiles.data()) + ": ";
  }
  StepConstants constants_of_group(std::size_t group) const {
    try {
      return constants_of(groups_[group].config, step_);
    } catch (const InvalidArgument& error) {
      if (groups_.size() == 1) throw;
      throw InvalidArgument("group " + std::to_string(group) + ": " + error.what());
    }
  }
  void join_places() {
    std::size_t kept = 0;
    for (const Place& place : places_) {
      if (place.continues) {
        places_[kept - 1].count += place.count;
      } else {
        places_[kept++] = place;
      }
    }
    places_.erase(places_.begin() + static_cast<std::ptrdiff_t>(kept), places_.end());
  }
  const Kernel& kernel_;
  const std::span<const Group> groups_;
  const Step step_;
  std::vector<StepConstants> constants_;  // one for each group
  std::vector<Place> places_;
  std::vector<std::size_t> begins_;  // first element of each place
  std::size_t elements_ = 0;
};

// The constants of a step of one tile, after all checks.
StepConstants checked_constants(const OptimizerConfig& config, const Step& step, const Tile& tile) {
  const StepConstants constants = constants_of(config, step);
  check_apart(config, tile, checked_count(config, tile));
  return constants;
}

bool step_part_on(const Kernel& kernel, const OptimizerConfig& config, const Step& step,
                  const Tile& tile, std::size_t step_elements) {
  const StepConstants constants = checked_constants(config, step, tile);
  TilePlan plan = plan_of(kernel, config, constants, tile);
  if (plan.count() == 0) return true;
  if (should_stream(plan, step_elements)) plan.arguments.store = WeightStore::streaming;
  const bool finite = plan.run(step, 0, plan.count());
  hwy::FlushStream();
  return finite;
}

}  // namespace

bool step_tile_on(const Kernel& kernel, const OptimizerConfig& config, const Step& step,
                  const Tile& tile) {
  return step_part_on(kernel, config, step, tile, elements_of(tile.master));
}

bool step_on(const Kernel& kernel, std::span<const Group> groups, const Step& step,
             Executor& executor) {
  const StepPlan plan(kernel, groups, step, executor);
  std::atomic<bool> finite = true;
  executor.for_each_near(
      plan.chunks(), [&](std::size_t chunk) { return plan.memory_of(chunk); },
      [&](std::size_t chunk) {
        if (!plan.run(chunk)) finite = false;
      });
  return finite;
}

std::vector<StepArguments> step_arguments(const OptimizerConfig& config, const Step& step,
                                          const Tile& tile) {
  const StepConstants constants = checked_constants(config, step, tile);
  const TilePlan plan = plan_of(scalar_kernel(), config, constants, tile);  // for its memory
  const bool bf16_moments = plan.layout.moment_bytes == sizeof(Bf16);
  std::vector<StepArguments> runs;
  for (std::size_t first = 0; first < plan.count(); first += runs.back().tile.count)
    runs.push_back({rule_of(config), plan.layout.master, bf16_moments, constants,
                    plan.run_at(step, first, plan.count() - first)});
  return runs;
}

bool run_step(const StepArguments& step) {
  const StateLayout layout{step.master, moment_count(step.rule), moment_bytes(step.bf16_moments)};
  return run_on(step_function(chosen_kernel(), step.rule, layout), step.constants, step.tile,
                layout);
}

std::size_t first_non_finite(const OptimizerConfig& config, const Tile& tile) {
  const std::size_t count = checked_count(config, tile);
  const StepConstants unused{};
  const TilePlan plan = plan_of(scalar_kernel(), config, unused, tile);
  return count == 0 ? 0 : first_non_finite(plan.arguments, plan.layout);
}

bool step_tile(const OptimizerConfig& config, const Step& step, const Tile& tile) {
  return step_tile_on(chosen_kernel(), config, step, tile);
}

bool step_part(const OptimizerConfig& config, const Step& step, const Tile& part,
               std::size_t step_elements) {
  return step_part_on(chosen_kernel(), config, step, part, step_elements);
}

bool step(const OptimizerConfig& config, const Step& step, const Tile& tile, Executor& executor) {
  if (elements_of(tile.master) <= kChunk) return step_tile(config, step, tile);  // nothing to share
  const Group group{config, {&tile, 1}};
  return step_on(chosen_kernel(), {&group, 1}, step, executor);
}

bool step(std::span<const Group> groups, const Step& step, Executor& executor) {
  return step_on(chosen_kernel(), groups, step, executor);
}

}  // namespace sluice::cpu_adam
