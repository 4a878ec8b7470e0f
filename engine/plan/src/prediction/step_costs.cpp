#include "prediction/step_costs.hpp"

#include <algorithm>

#include "sluice/plan/stages.hpp"
#include "step/home_bytes.hpp"
#include "step/step_seconds.hpp"

namespace sluice::plan {

using offload::Tier;

namespace {

// Drive seconds of an update: bytes both read and written at the swap rate, the rest at its own.
double swap_seconds(const MachineRates& rates, const UnitTraffic& traffic) {
  const std::uint64_t both = std::min(traffic.read_bytes, traffic.written_bytes);
  return over(2.0 * static_cast<double>(both), rates.swap_bytes_per_second) +
         over(static_cast<double>(traffic.read_bytes - both), rates.read_bytes_per_second) +
         over(static_cast<double>(traffic.written_bytes - both), rates.write_bytes_per_second);
}

}  // namespace

std::vector<Stage> Costs::stages() const {
  std::vector<Stage> all;
  const auto steps = step_stages(plan_.layouts);
  const std::size_t last = plan_.layouts.size() - 1;
  for (std::size_t i = 0; i < plan_.passes() * steps.size(); ++i) {
    const std::size_t s = i % steps.size();
    const bool last_pass = i / steps.size() + 1 == plan_.passes();
    Stage stage{.unit = steps[s].front(), .backward = s >= last, .last_pass = last_pass};
    const UnitTraffic& traffic = visits_[stage.unit];
    // A unit moves its share of a step's bytes at each of its visits; the head has one.
    const double visits = static_cast<double>(plan_.passes()) * (stage.unit == last ? 1 : 2);
    stage.micro_batches = plan_.micro_batches_of(i / steps.size());
    const double copied = static_cast<double>(traffic.h2d_bytes + traffic.d2h_bytes) / visits;
    stage.compute_seconds = compute_seconds(stage);
    stage.copy_seconds = over(copied, rates_.copy_bytes_per_second);
    stage.drive_seconds =
        (over(static_cast<double>(traffic.read_bytes), rates_.read_bytes_per_second) +
         over(static_cast<double>(traffic.written_bytes), rates_.write_bytes_per_second)) /
        visits;
    all.push_back(stage);
  }
  return all;
}

Update Costs::keeping(std::size_t unit) const {
  const UnitTraffic traffic = update_traffic(plan_, unit);
  const double copied = update_sends_weights(plan_.units[unit])
                            ? static_cast<double>(traffic.h2d_bytes)
                            : static_cast<double>(compute_bytes(plan_, unit));
  Update update;
  update.cpu_seconds = over(copied, rates_.copy_bytes_per_second);
  update.write_seconds =
      over(static_cast<double>(traffic.written_bytes), rates_.write_bytes_per_second);
  update.drive_seconds = update.write_seconds;
  return update;
}

Update Costs::update(std::size_t unit) const {
  // The device takes milliseconds for all units of which it has all.
  if (device_has_all_of(plan_.units[unit])) return {};
  const UnitTraffic traffic = update_traffic(plan_, unit);
  const auto count = static_cast<double>(shard_count(plan_, unit));
  Update update;
  const double on_cores = 1 - share_on_device(unit);
  const double computing =
      over(on_cores * count, rates_.update_elements_per_second) +
      over(static_cast<double>(traffic.written_bytes), rates_.checksum_bytes_per_second);
  const double sending =
      over(on_cores * static_cast<double>(traffic.h2d_bytes), rates_.copy_bytes_per_second);
  const double fetching =
      over(static_cast<double>(traffic.d2h_bytes), rates_.copy_bytes_per_second);
  // A GPU copies in both directions at once, and tiles are computed meanwhile.
  update.cpu_seconds =
      plan_.device.gpu ? std::max({computing, sending, fetching}) : computing + sending;
  update.drive_seconds = swap_seconds(rates_, traffic);
  update.read_seconds = over(static_cast<double>(traffic.read_bytes), rates_.read_bytes_per_second);
  update.write_seconds =
      over(static_cast<double>(traffic.written_bytes), rates_.write_bytes_per_second);
  if (update.read_seconds > 0)
    update.tiles = count / static_cast<double>(plan_.rings.update.tile_elements);
  return update;
}

// The share of the unit's elements that the device updates: cores and device end together. Both use
// the link; the device has what the cores leave of each direction.
double Costs::share_on_device(std::size_t unit) const {
  const UnitPlacement& placement = plan_.units[unit];
  const double cores = rates_.update_elements_per_second;
  if (plan_.rings.update.device_tiles == 0 || !device_can_update(placement)) return 0;
  const models::StateFormat& format = plan_.state_format;
  double state_bytes = 0;
  for (std::size_t part = 0; part < format.part_count(); ++part)
    state_bytes += static_cast<double>(format.part(part).element_bytes);
  const auto weight_bytes = static_cast<double>(size_of(plan_.compute_dtype));
  const auto gradient_bytes = static_cast<double>(size_of(plan_.config.gradient_dtype()));
  const bool gradient_on_device = placement.gradients == Tier::device;
  const auto left_over = [&](double bytes_of_cores, double bytes_of_device) {
    return over(rates_.copy_bytes_per_second - cores * bytes_of_cores, bytes_of_device);
  };
  const double in = left_over(weight_bytes, state_bytes - (format.is_split() ? weight_bytes : 0) +
                                                (gradient_on_device ? 0 : gradient_bytes));
  // Gradients leave while updates run, unless these wait for all of them.
  const bool leaves = gradient_on_device || !plan_.config.updates_need_all_gradients();
  const double half = half_copied_to_tile(placement, format) ? weight_bytes : 0;
  const double out =
      left_over((leaves ? gradient_bytes : 0) + half,
                state_bytes - half + (leaves && !gradient_on_device ? gradient_bytes : 0));
  const double device = std::min(in, out);
  return over(device, device + cores);
}

double Costs::compute_seconds(const Stage& stage) const {
  const std::size_t last = plan_.layouts.size() - 1;
  const bool saves = plan_.units[stage.unit].activations_saved;
  const UnitRates& of = stage.unit == 0      ? rates_.embedding
                        : stage.unit == last ? rates_.head
                                             : rates_.block;
  const auto all = [&](double UnitSeconds::*pass) {
    return of.first.*pass + static_cast<double>(stage.micro_batches - 1) * of.next.*pass;
  };
  // Micro-batches of the last pass beyond those of every pass are not saved.
  const std::size_t most_saved = saves ? plan_.schedule.passes.each : 0;
  const auto again =
      static_cast<double>(stage.micro_batches - std::min(stage.micro_batches, most_saved));
  const auto gradient_bytes = static_cast<double>(plan_.layouts[stage.unit].flat_count *
                                                  size_of(plan_.config.gradient_dtype()));
  const double gradient =
      stage.last_pass ? over(gradient_bytes, rates_.gradient_bytes_per_second) : 0;
  if (stage.unit == last) return all(&UnitSeconds::backward) + gradient;
  const double with_saving = all(&UnitSeconds::forward_saving);
  const double more = again * of.next.forward_saving;
  if (!stage.backward)
    return saves ? with_saving + again * (of.next.forward - of.next.forward_saving)
                 : all(&UnitSeconds::forward);
  return all(&UnitSeconds::backward) + (saves ? more : with_saving) + gradient;
}

}  // namespace sluice::plan
