#pragma once
// What is done to the tiles of a unit's optimizer states, and how it is known when it was done to
// all of them.

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sluice/base/ticket.hpp"
#include "sluice/offload/device.hpp"
#include "sluice/offload/tiered_bytes.hpp"
#include "sluice/plan/unit_placement.hpp"
#include "update/optimizer_tile.hpp"
#include "update/read_ahead.hpp"

namespace sluice::train {

// One part of a unit's states.
struct PartHome {
  plan::PartPlace place = plan::PartPlace::memory;
  std::optional<std::size_t> shard;  // index in the store, if it is there
  offload::TieredBytes memory;       // where the place is memory, or a device out of reach
};
// As many as the format has parts.
using StateHome = std::vector<PartHome>;

// What is done to each tile of a unit. Bytes that are not in memory come from and go to the tile's
// buffer.
struct TileWork {
  using Bytes = std::span<std::byte>;
  using States = StateSpans;

  // Which parts are read from the store, or written to it: those that are nowhere else; those that
  // memory has as well; all.
  enum class Parts { none, in_store_only, in_memory_too, all };

  const char* what = "";  // as the trace calls it
  Parts read_states = Parts::none;
  Parts write_states = Parts::none;
  bool read_gradient = false;
  bool write_weight = false;
  // Of the device's work, what copies of its memory wait for.
  offload::ComputePoint after;
  // Runs on the updater's thread with the states, gradient and weight of the tile; the weight is
  // empty where it is half of a split master. May be empty.
  std::function<void(const TileRange&, const States& states, Bytes gradient, Bytes weight)> compute;
  // When the weights of all tiles are at their home, which may be before their states are; with
  // the first error, if there was one.
  std::function<void(std::exception_ptr)> weights_current;
  // After all tiles of the unit have ended well.
  std::function<void()> finish;
  // After that, and also when it failed.
  std::function<void()> ended;
  bool is_update() const { return read_gradient; }
};

// What a tile covers of a home in memory.
inline std::span<std::byte> bytes_in(const offload::TieredBytes& home, const TileRange& range,
                                     std::size_t element_bytes) {
  return home.memory().subspan(range.begin * element_bytes, range.count * element_bytes);
}

// Whether such a read or write concerns what has a place in the tile only.
bool in_tile_only(TileWork::Parts parts);
// Whether it concerns a part that lives there.
bool includes(TileWork::Parts parts, const PartHome& home);

// What a unit's tiles have in common. Confined to the updater's thread after ticket().
class UnitCountdown {
 public:
  UnitCountdown(std::size_t tiles, TileWork work);
  // Ends when the last tile has. The first error is told once: to who waits for the weights, if it
  // came before they were current, else by this.
  Ticket ticket() { return source_.ticket(); }
  const TileWork& work() const { return work_; }
  // Once for each tile, in this order.
  void weights_of_one(const std::exception_ptr& error);
  void end_one(const std::exception_ptr& error);

 private:
  const TileWork work_;
  std::size_t without_weights_;
  std::size_t left_;
  std::exception_ptr first_error_;
  bool told_ = false;
  TicketSource source_;
};

// One tile on its way; keeps its unit's countdown.
class TileEnd {
 public:
  explicit TileEnd(std::shared_ptr<UnitCountdown> countdown) : countdown_(std::move(countdown)) {}
  // Its weights are at their home, before its end.
  void weights_current();
  void end(const std::exception_ptr& error);

 private:
  const std::shared_ptr<UnitCountdown> countdown_;
  bool current_ = false;
};

}  // namespace sluice::train
