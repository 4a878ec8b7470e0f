#include "update/speculation/speculation.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <limits>
#include <span>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/cpu_adam/copy.hpp"
#include "update/optimizer_tile.hpp"

namespace sluice::train {

using Bytes = TileWork::Bytes;
using States = TileWork::States;

struct Speculation::Progress {
  std::atomic<bool> cancelled{false};
  std::atomic<std::int64_t> nanoseconds{0};  // that threads have computed
  Mutex mutex;
  // The error of the lowest piece that failed, as without speculation.
  std::exception_ptr error SLUICE_GUARDED_BY(mutex);
  std::uint64_t failed_at SLUICE_GUARDED_BY(mutex) = std::numeric_limits<std::uint64_t>::max();

  void failed(std::uint64_t element, const std::exception_ptr& why) {
    MutexLock lock(mutex);
    if (element >= failed_at) return;
    failed_at = element;
    error = why;
  }
  std::exception_ptr first_error() {
    MutexLock lock(mutex);
    return error;
  }
};

namespace {

// Elements that a thread updates at a time in memory of its own, which its caches hold.
constexpr std::uint64_t kBlockElements = 8192;

// Updates states into second states. Both are in memory, so the update is done on a copy that stays
// in the caches, and its results go past them: memory is read and written as by an update in place.
class BlockUpdate {
 public:
  BlockUpdate(const UpdaterResources& resources, const TilePlacement& placement,
              const UpdateSettings& settings)
      : resources_(resources), placement_(placement), settings_(settings) {}

  void operator()(const TileRange& piece, const States& states, Bytes gradient) {
    const States second = placement_.second_states(piece);
    const TileRange whole{piece.unit, 0, piece.count};
    for (std::uint64_t at = 0; at < piece.count; at += kBlockElements) {
      const TileRange block = tile_at(piece.unit, at, piece.count, kBlockElements);
      update({piece.unit, piece.begin + at, block.count}, parts_of(states, whole, block),
             parts_of(second, whole, block), part_of(gradient, whole, block));
    }
  }

 private:
  static Bytes part_of(Bytes memory, const TileRange& whole, const TileRange& block) {
    const std::size_t element_bytes = memory.size() / whole.count;
    return memory.subspan(block.begin * element_bytes, block.count * element_bytes);
  }
  static States parts_of(const States& states, const TileRange& whole, const TileRange& block) {
    States parts;
    for (std::size_t i = 0; i < states.size(); ++i) parts[i] = part_of(states[i], whole, block);
    return parts;
  }
  void update(const TileRange& block, const States& states, const States& second, Bytes gradient) {
    std::size_t used = 0;
    const auto take = [&](std::size_t size_bytes) {
      const Bytes taken = Bytes(memory_.get(), kMemoryBytes).subspan(used, size_bytes);
      used += align_up(size_bytes, kAlignment);
      return taken;
    };
    States copies;
    for (std::size_t i = 0; i < states.size(); ++i) {
      copies[i] = take(states[i].size());
      if (!states[i].empty()) std::memcpy(copies[i].data(), states[i].data(), states[i].size());
    }
    // The optimizer rounds an fp32 master to weights, and looks whether these are finite.
    const plan::Plan& plan = *resources_.plan;
    Bytes weight;
    if (!plan.state_format.is_split()) weight = take(block.count * size_of(plan.compute_dtype));
    cpu_adam::Tile tile = tile_of(plan, copies, gradient, weight);
    tile.first_element = placement_.first_element(block.unit) + block.begin;
    step_piece(plan, resources_.store, settings_, block, tile);
    for (std::size_t i = 0; i < copies.size(); ++i)
      cpu_adam::copy_past_caches(second[i], copies[i]);
  }

  static constexpr std::size_t kAlignment = 64;
  // Room for all parts in fp32, and the weights.
  static constexpr std::size_t kMemoryBytes =
      (models::kMostStateParts + 1) * kBlockElements * sizeof(float);

  const UpdaterResources& resources_;
  const TilePlacement& placement_;
  const UpdateSettings& settings_;
  const std::unique_ptr<std::byte[]> memory_ =
      std::make_unique_for_overwrite<std::byte[]>(kMemoryBytes);
};

}  // namespace

Speculation::Speculation(const UpdaterResources& resources, TilePlacement& placement,
                         std::size_t unit)
    : resources_(resources),
      placement_(placement),
      unit_(unit),
      progress_(std::make_shared<Progress>()) {}

TileWork Speculation::update_work(const UpdateSettings& settings) {
  using Clock = std::chrono::steady_clock;
  TileWork work;
  work.what = "speculative update";
  work.read_gradient = true;
  work.compute = [&resources = resources_, &placement = placement_, progress = progress_, settings](
                     const TileRange& range, const States& states, Bytes gradient, Bytes) {
    if (progress->cancelled.load(std::memory_order_relaxed)) return;  // its results are not used
    const auto begin = Clock::now();
    const std::exception_ptr error =
        error_of([&] { BlockUpdate(resources, placement, settings)(range, states, gradient); });
    if (error) progress->failed(range.begin, error);
    // A sum of independent numbers, read for a report.
    progress->nanoseconds.fetch_add((Clock::now() - begin) / std::chrono::nanoseconds(1),
                                    std::memory_order_relaxed);
  };
  // A gradient that could not be read.
  work.ended = [progress = progress_](const std::exception_ptr& error) {
    if (error) progress->failed(0, error);
  };
  return work;
}

TileWork Speculation::keep_work(const offload::ComputePoint& after) {
  TileWork work;
  work.what = "keep";
  work.after = after;
  work.write_weight = true;
  work.start = [&placement = placement_, unit = unit_, progress = progress_] {
    std::exception_ptr error = progress->first_error();
    if (!error) placement.exchange_states(unit);
    return error;
  };
  const plan::Plan& plan = *resources_.plan;
  if (!plan.state_format.is_split()) {
    work.compute = [&plan](const TileRange&, const States& states, Bytes, Bytes weight) {
      write_weights(as<float>(states[0]), weight, plan.compute_dtype);
    };
  } else if (placement_.home(unit_).front().place == plan::PartPlace::weights) {
    work.compute = [&placement = placement_](const TileRange& range, const States& states, Bytes,
                                             Bytes) {
      const Bytes updated = placement.second_states(range)[0];
      std::memcpy(states[0].data(), updated.data(), updated.size());
    };
  } else {
    work.sends_unit = true;
  }
  return work;
}

double Speculation::cancel() {
  progress_->cancelled.store(true, std::memory_order_relaxed);
  return 1e-9 * static_cast<double>(progress_->nanoseconds.load(std::memory_order_relaxed));
}

}  // namespace sluice::train
