#include "update/tile_work.hpp"

#include <utility>

namespace sluice::train {

bool includes_uncached(TileWork::Parts parts) {
  return parts == TileWork::Parts::uncached || parts == TileWork::Parts::all;
}

bool includes(TileWork::Parts parts, const PartHome& home) {
  if (!home.shard || parts == TileWork::Parts::none) return false;
  if (parts == TileWork::Parts::all) return true;
  const bool cached = home.place != plan::PartPlace::tile;
  return cached == (parts == TileWork::Parts::cached);
}

UnitCountdown::UnitCountdown(std::size_t tiles, TileWork work)
    : work_(std::move(work)), without_weights_(tiles), left_(tiles) {}

void UnitCountdown::weights_of_one(const std::exception_ptr& error) {
  if (!first_error_) first_error_ = error;
  if (--without_weights_ > 0 || !work_.weights_current) return;
  work_.weights_current(first_error_);
  told_ = first_error_ != nullptr;
}

void UnitCountdown::end_one(const std::exception_ptr& error) {
  if (!first_error_) first_error_ = error;
  if (--left_ > 0) return;
  try {
    if (!first_error_ && work_.finish) work_.finish();
  } catch (...) {
    first_error_ = std::current_exception();
  }
  if (work_.ended) work_.ended(first_error_);
  source_.complete(told_ ? nullptr : first_error_);
}

void TileEnd::weights_current() {
  if (!std::exchange(current_, true)) countdown_->weights_of_one(nullptr);
}

void TileEnd::end(const std::exception_ptr& error) {
  if (!current_) countdown_->weights_of_one(error);
  countdown_->end_one(error);
}

}  // namespace sluice::train
