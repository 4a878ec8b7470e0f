#include "update/optimizer_tile.hpp"

#include <algorithm>
#include <sstream>
#include <string>

#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"
#include "sluice/cpu_adam/copy.hpp"
#include "sluice/models/checkpoints.hpp"
#include "sluice/train/run_source.hpp"

namespace sluice::train {

namespace {

cpu_adam::WeightSpan weight_span(std::span<std::byte> bytes, DType dtype) {
  if (dtype == DType::bf16) return as<Bf16>(bytes);
  if (dtype == DType::fp16) return as<Fp16>(bytes);
  return as<float>(bytes);
}

cpu_adam::MomentSpan moment_span(std::span<std::byte> bytes, const models::StateFormat& format) {
  if (format.moments == config::MomentFormat::bf16) return as<Bf16>(bytes);
  return as<float>(bytes);
}

// Elements [first, first + count) of a tile.
cpu_adam::Tile part_of(const cpu_adam::Tile& tile, std::size_t first, std::size_t count) {
  cpu_adam::Tile part;
  if (const auto* split = std::get_if<cpu_adam::SplitMaster>(&tile.master)) {
    part.master = cpu_adam::SplitMaster{split->weight.subspan(first, count),
                                        split->low.subspan(first, count)};
  } else {
    part.master = std::get<std::span<float>>(tile.master).subspan(first, count);
  }
  for (std::size_t k = 0; k < tile.moments.size(); ++k) {
    part.moments[k] = std::visit(
        [&](auto moment) -> cpu_adam::MomentSpan {
          return moment.empty() ? moment : moment.subspan(first, count);
        },
        tile.moments[k]);
  }
  part.gradient = std::visit(
      [&](auto gradient) -> cpu_adam::GradientSpan { return gradient.subspan(first, count); },
      tile.gradient);
  part.weight = std::visit(
      [&]<class W>(W weight) -> cpu_adam::WeightSpan {
        if constexpr (std::is_same_v<W, std::monostate>) {
          return weight;
        } else {
          return weight.subspan(first, count);
        }
      },
      tile.weight);
  part.first_element = tile.first_element + first;
  return part;
}

// The first element of a parameter, among elements [begin, begin + count) of the unit's flat
// buffer, that is non-finite in `tile`. Empty when there is none: padding does not count.
std::string first_non_finite(const zero::UnitLayout& layout,
                             const cpu_adam::OptimizerConfig& optimizer, std::uint64_t begin,
                             std::uint64_t count, const cpu_adam::Tile& tile) {
  for (const zero::ParamLayout& param : layout.params) {
    const zero::ShardRange part = zero::part_in(param, begin, count);
    if (part.count == 0) continue;
    const std::size_t bad =
        cpu_adam::first_non_finite(optimizer, part_of(tile, part.begin - begin, part.count));
    if (bad == part.count) continue;
    return param.name + " (element " + format_count(part.begin - param.offset_count + bad) +
           " of " + format_count(param.count) + ")";
  }
  return "";
}

// Adam and Adagrad divide by a root to which epsilon is added.
bool may_divide_by_zero(const cpu_adam::OptimizerConfig& optimizer) {
  if (const auto* adam = std::get_if<cpu_adam::AdamConfig>(&optimizer)) return adam->epsilon == 0;
  const auto* adagrad = std::get_if<cpu_adam::AdagradConfig>(&optimizer);
  return adagrad != nullptr && adagrad->epsilon == 0;
}

std::string likely_cause(const plan::Plan& plan, const UpdateSettings& settings,
                         const cpu_adam::OptimizerConfig& optimizer) {
  if (may_divide_by_zero(optimizer)) {
    return "The likely cause is \"eps\": 0: an element whose gradient has always been 0 becomes "
           "0 / 0. Set optimizer.params.eps above 0, for example to 1e-8";
  }
  constexpr double kMostSquared = 1.8e19;  // its square is at the end of fp32
  std::ostringstream text;
  if (plan.config.gradient_clipping == 0 && settings.gradient_norm > kMostSquared) {
    text << "The likely cause is the gradient, whose norm in this step is "
         << settings.gradient_norm << ": squares of numbers above " << kMostSquared
         << " are beyond fp32. Set gradient_clipping";
    return text.str();
  }
  text << "The likely cause is a learning rate that is too large, "
       << std::visit([](const auto& of) { return of.learning_rate; }, optimizer)
       << " in this step: lower it";
  if (plan.config.gradient_clipping == 0) text << ", or set gradient_clipping";
  if (plan.compute_dtype == DType::fp16) text << "; weights in fp16 end at 65504";
  return text.str();
}

}  // namespace

cpu_adam::GradientSpan gradient_span(std::span<std::byte> bytes, DType dtype) {
  if (dtype == DType::bf16) return std::span<const Bf16>(as<Bf16>(bytes));
  if (dtype == DType::fp16) return std::span<const Fp16>(as<Fp16>(bytes));
  return std::span<const float>(as<float>(bytes));
}

void write_weights(std::span<const float> master, std::span<std::byte> weights, DType dtype) {
  if (dtype == DType::fp32) {
    std::copy(master.begin(), master.end(), as<float>(weights).begin());
    return;
  }
  if (dtype == DType::fp16) {
    std::transform(master.begin(), master.end(), as<Fp16>(weights).begin(),
                   [](float value) { return to_fp16(value); });
    return;
  }
  std::transform(master.begin(), master.end(), as<Bf16>(weights).begin(),
                 [](float value) { return to_bf16(value); });
}

void set_first_moments(const plan::Plan& plan, const StateSpans& states) {
  const models::StateFormat& format = plan.state_format;
  const auto value = static_cast<float>(plan.config.optimizer.initial_accumulator_value);
  for (std::size_t i = format.first_moment(); i < format.part_count(); ++i) {
    if (format.moments == config::MomentFormat::bf16) {
      std::ranges::fill(as<Bf16>(states[i]), to_bf16(value));
    } else {
      std::ranges::fill(as<float>(states[i]), value);
    }
  }
}

cpu_adam::SplitMaster split_master(const StateSpans& states) {
  return {as<Bf16>(states[0]), as<std::uint16_t>(states[1])};
}

cpu_adam::Tile tile_of(const plan::Plan& plan, const StateSpans& states,
                       std::span<std::byte> gradient, std::span<std::byte> weight) {
  const models::StateFormat& format = plan.state_format;
  cpu_adam::Tile tile;
  if (format.is_split()) {
    tile.master = split_master(states);
  } else {
    tile.master = as<float>(states[0]);
    tile.weight = weight_span(weight, plan.compute_dtype);
  }
  const std::size_t first = format.first_moment();
  for (std::size_t k = 0; k < cpu_adam::moment_count(format.rule); ++k)
    tile.moments[k] = moment_span(states[first + k], format);
  tile.gradient = gradient_span(gradient, plan.config.gradient_dtype());
  return tile;
}

std::string remaining_state(const plan::Plan& plan, const offload::SwapStore* store) {
  const bool two_slots = store != nullptr && plan.state_durability() != Durability::none;
  if (two_slots && store->committed_step() > 0) {
    return "The commit of step " + std::to_string(store->committed_step()) +
           " stays valid: continue from it with " + std::string(kResumeWords);
  }
  std::string lost;
  if (!two_slots) lost = "The states were updated in place, so they are lost with this run. ";
  const std::string& directory = plan.config.sluice.checkpoints.directory;
  const std::string newest = directory.empty() ? "" : models::newest_checkpoint(directory);
  if (newest.empty() && plan.own_loop())
    return lost + "Load a checkpoint that the script has saved, or begin anew";
  if (newest.empty()) return lost + "Nothing was committed before: begin anew";
  return lost + "The last checkpoint is " + newest + ": continue from it with " +
         std::string(kResumeWords);
}

namespace {

[[noreturn]] void throw_non_finite(const plan::Plan& plan, const offload::SwapStore* store,
                                   const UpdateSettings& settings,
                                   const cpu_adam::OptimizerConfig& optimizer,
                                   const std::string& bad) {
  throw Error("step " + std::to_string(settings.training_step) + ": the update of " + bad +
              " gave a non-finite value from finite gradients, so this step is not committed. " +
              likely_cause(plan, settings, optimizer) + ". " + remaining_state(plan, store));
}

}  // namespace

void copy_states(const StateSpans& to, const StateSpans& from) {
  for (std::size_t i = 0; i < to.size(); ++i) cpu_adam::copy_past_caches(to[i], from[i]);
}

void for_each_group(const plan::Plan& plan, const TileRange& range, const cpu_adam::Tile& tile,
                    const GroupVisit& visit) {
  const std::vector<models::GroupSegment>& segments = plan.groups.segments[range.unit];
  const std::uint64_t begin =
      zero::shard_range(plan.layouts[range.unit], plan.config.rank, plan.config.world_size).begin +
      range.begin;
  const std::uint64_t end = begin + range.count;
  // The last segment that does not begin after `begin`.
  auto segment = std::ranges::upper_bound(segments, begin, {}, &models::GroupSegment::begin) - 1;
  for (; segment != segments.end() && segment->begin < end; ++segment) {
    const std::uint64_t from = std::max(begin, segment->begin);
    const std::uint64_t to = std::min(end, segment->begin + segment->count);
    const models::GroupSegment elements{from, to - from, segment->group};
    const bool whole = elements.count == range.count;
    visit(elements, whole ? tile : part_of(tile, from - begin, elements.count));
  }
}

void check_finite(const plan::Plan& plan, const offload::SwapStore* store,
                  const UpdateSettings& settings, const TileRange& range,
                  const cpu_adam::Tile& tile) {
  const zero::UnitLayout& layout = plan.layouts[range.unit];
  for_each_group(plan, range, tile,
                 [&](const models::GroupSegment& elements, const cpu_adam::Tile& part) {
                   const cpu_adam::OptimizerConfig& optimizer = settings.groups[elements.group];
                   const std::string bad =
                       first_non_finite(layout, optimizer, elements.begin, elements.count, part);
                   if (!bad.empty()) throw_non_finite(plan, store, settings, optimizer, bad);
                 });
}

void step_piece(const plan::Plan& plan, const offload::SwapStore* store,
                const UpdateSettings& settings, const TileRange& range,
                const cpu_adam::Tile& tile) {
  const std::uint64_t all =
      zero::shard_range(plan.layouts[range.unit], 0, plan.config.world_size).count;
  bool finite = true;
  for_each_group(
      plan, range, tile, [&](const models::GroupSegment& elements, const cpu_adam::Tile& part) {
        finite = cpu_adam::step_part(settings.groups[elements.group], settings.step, part, all) &&
                 finite;
      });
  if (!finite) check_finite(plan, store, settings, range, tile);
}

}  // namespace sluice::train
