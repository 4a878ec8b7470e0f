// LoopCore: single parameters, their states and gradients, read and written between passes.

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "device/tensor_bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/models/bound_params.hpp"
#include "sluice/train/outside_budget.hpp"
#include "user_loop/loop_core.hpp"

namespace sluice::train {

using torch::Tensor;

namespace {

void check_shape(const zero::ParamLayout& param, const Tensor& values) {
  SLUICE_CHECK(values.sizes() == torch::IntArrayRef(param.shape),
               "values of shape " + c10::str(values.sizes()) + " for parameter " + param.name +
                   " of shape " + c10::str(torch::IntArrayRef(param.shape)));
}

// Sums what each rank has of a tensor, which may be on a GPU; elements of other ranks are 0. The
// sum is where the part is. `label` names the parameter, since parameters of equal sizes differ in
// nothing else: a mixture of two would be the sum where ranks ask for different ones.
Tensor sum_over(zero::Communicator& ranks, const Tensor& part, std::string label) {
  if (ranks.world_size() == 1) return part;
  Tensor sum = part.to(torch::kCPU, torch::kFloat64).contiguous();
  ranks.all_reduce({sum.data_ptr<double>(), static_cast<std::size_t>(sum.numel())},
                   std::move(label));
  return sum.to(part.options());
}

// The elements of this rank's shard that are the parameter's.
zero::ShardRange elements_of(const zero::ParamLayout& param, const zero::ShardRange& shard) {
  zero::ShardRange part = zero::part_in(param, shard.begin, shard.count);
  if (part.count > 0) part.begin -= shard.begin;
  return part;
}

// The smallest range with both; a range without elements adds nothing.
zero::ShardRange hull_of(const zero::ShardRange& a, const zero::ShardRange& b) {
  if (a.count == 0 || b.count == 0) return a.count == 0 ? b : a;
  const std::uint64_t begin = std::min(a.begin, b.begin);
  return {begin, std::max(a.begin + a.count, b.begin + b.count) - begin};
}

// The part of `values` that belongs to the parameter, and where it begins in the parameter. The
// values begin at element `first_count` of the layout.
struct Overlap {
  std::span<float> values;
  std::uint64_t offset_count = 0;
};
Overlap overlap_of(const StateUpdater::Values& values, std::uint64_t first_count,
                   std::optional<std::size_t> moment, const zero::ParamLayout& param) {
  const std::span<float> all = moment ? values.moments[*moment] : values.master;
  const std::uint64_t first = first_count + values.offset_count;
  const zero::ShardRange part = zero::part_in(param, first, all.size());
  if (part.count == 0) return {};
  return {all.subspan(part.begin - first, part.count), part.begin - param.offset_count};
}

}  // namespace

// Nothing is gathered while a parameter is written. What a script looks at may be, for a read.
const zero::ParamLayout& LoopCore::begin_access(ParamPlace place, Access access) {
  check_whole();
  const zero::ParamLayout& param = plan_.layouts[place.layout].params[place.param];
  SLUICE_CHECK(!units_.any_in_pass(),
               "parameter " + param.name + " is read or set inside a unit's forward or backward");
  SLUICE_CHECK(access == Access::read || !units_.any_shown(),
               "parameter " + param.name +
                   " is set while a script sees gathered values, as inside GatheredParameters: set "
                   "it before or after");
  if (access == Access::write) check_step_ended("a parameter, a gradient or a state that is set");
  resources_->updater->check_updates();  // a gather tells of its own unit's, and only once
  order_->pause();
  finish_moves();  // their reductions use the communicator of this thread
  return param;
}

const zero::ParamLayout& LoopCore::begin_state_access(ParamPlace place, Access access) {
  const zero::ParamLayout& param = begin_access(place, access);
  SLUICE_CHECK(!plan_.units[place.layout].frozen,
               "parameter " + param.name + " is frozen: it has no optimizer states");
  finish_step(false);
  return param;
}

Tensor LoopCore::copy_of(const zero::ParamLayout& param, const zero::ShardedUnit& gathered) const {
  const torch::NoGradGuard no_grad;
  const OutsideBudget outside;
  Tensor copy = torch::empty(param.shape, torch_dtype_);
  copy.copy_(models::view_of(
      param, tensor_over(gathered.weights(), plan_.compute_dtype, resources_->compute.where)));
  return copy;
}

Tensor LoopCore::parameter(const std::string& name) {
  return parameters({name}).front();
}

std::vector<Tensor> LoopCore::parameters(const std::vector<std::string>& names) {
  std::map<std::size_t, std::vector<std::size_t>> by_layout;  // places in `names`
  for (std::size_t i = 0; i < names.size(); ++i) {
    const ParamPlace place = units_.find(names[i]);
    begin_access(place, Access::read);
    by_layout[place.layout].push_back(i);
  }
  check_stream();
  const c10::InferenceMode ordinary(false);
  std::vector<Tensor> copies(names.size());
  for (const auto& [layout, of_layout] : by_layout) {
    zero::ShardedUnit& unit = *resources_->units[layout];
    const bool is_shown = units_.shown()[layout] > 0;  // so it is gathered, and stays
    if (!is_shown) unit.finish_gather(gather_stall_);
    for (const std::size_t i : of_layout)
      copies[i] = copy_of(plan_.layouts[layout].params[units_.find(names[i]).param], unit);
    if (!is_shown) unit.release();
  }
  return copies;
}

void LoopCore::give_weights_back() {
  const c10::InferenceMode ordinary(false);
  std::vector<Tensors> copies(plan_.layouts.size());  // all of them, before any parameter changes
  for (std::size_t layout = 0; layout < copies.size(); ++layout) {
    begin_access({layout, 0}, Access::write);
    check_stream();
    zero::ShardedUnit& unit = *resources_->units[layout];
    unit.finish_gather(gather_stall_);
    for (const zero::ParamLayout& param : plan_.layouts[layout].params)
      copies[layout].push_back(copy_of(param, unit));
    unit.release();
  }
  for (std::size_t layout = 0; layout < copies.size(); ++layout)
    units_.give_values(layout, copies[layout]);
}

void LoopCore::set_parameters(const NamedTensors& values) {
  NamedTensors trained;
  std::map<std::size_t, NamedTensors> frozen;  // by layout
  for (const auto& [name, of_one] : values) {
    const ParamPlace place = units_.find(name);
    check_shape(begin_access(place, Access::write), of_one);
    (plan_.units[place.layout].frozen ? frozen[place.layout] : trained).emplace(name, of_one);
  }
  set_states(trained, std::nullopt);
  for (const auto& [layout, of_layout] : frozen) set_frozen(layout, of_layout);
}

void LoopCore::set_frozen(std::size_t layout, const NamedTensors& values) {
  check_stream();
  const c10::InferenceMode ordinary(false);
  const torch::NoGradGuard no_grad;
  zero::ShardedUnit& unit = *resources_->units[layout];
  unit.finish_gather(gather_stall_);
  const Tensor flat = tensor_over(unit.weights(), plan_.compute_dtype, resources_->compute.where);
  for (const auto& [name, of_one] : values)
    models::view_of(plan_.layouts[layout].params[units_.find(name).param], flat).copy_(of_one);
  store_shard(layout, unit.weights());
  unit.release();
  ++weights_version_;
}

std::vector<std::string> LoopCore::moment_names() const {
  switch (plan().state_format.rule) {
    case cpu_adam::Rule::adam:
      return {"exp_avg", "exp_avg_sq"};
    case cpu_adam::Rule::amsgrad:
      return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
    case cpu_adam::Rule::adagrad:
      return {"exp_avg_sq"};
    case cpu_adam::Rule::lion:
      return {"exp_avg"};
    case cpu_adam::Rule::momentum:
      return {"momentum_buffer"};
    case cpu_adam::Rule::sgd:
      return {};
  }
  return {};
}

Tensor LoopCore::state(const std::string& name, std::optional<std::size_t> moment) {
  const ParamPlace place = units_.find(name);
  const zero::ParamLayout& param = begin_state_access(place, Access::read);
  const OutsideBudget outside;
  const Tensor values = torch::zeros(param.shape, torch::kFloat32);
  float* const to = values.data_ptr<float>();
  const zero::ShardRange shard = shard_of(place.layout);
  const std::uint64_t first = shard.begin;
  resources_->updater
      ->begin_visit(place.layout, StateUpdater::Access::read, elements_of(param, shard),
                    [&param, first, moment, to](const StateUpdater::Values& shown) {
                      const Overlap part = overlap_of(shown, first, moment, param);
                      std::ranges::copy(part.values, to + part.offset_count);
                    })
      .finish();
  const std::string kind = moment ? moment_names()[*moment] : "the master weights";
  return sum_over(*resources_->communicator, values, kind + " of parameter " + name);
}

// A visit for each unit: on a drive each one writes all states of its unit.
void LoopCore::set_states(const NamedTensors& values, std::optional<std::size_t> moment) {
  struct Change {
    const zero::ParamLayout* param;
    Tensor flat;  // fp32, in CPU memory
  };
  const OutsideBudget outside;
  const bool is_of_squares = moment && moment_names()[*moment].ends_with("_sq");
  std::map<std::size_t, std::vector<Change>> by_layout;
  for (const auto& [name, of_one] : values) {
    const ParamPlace place = units_.find(name);
    const zero::ParamLayout& param = begin_state_access(place, Access::write);
    check_shape(param, of_one);
    const Tensor flat = of_one.detach().to(torch::kCPU, torch::kFloat32).contiguous();
    const float* const from = flat.const_data_ptr<float>();
    SLUICE_CHECK(std::all_of(from, from + flat.numel(), [](float v) { return std::isfinite(v); }),
                 "values for parameter " + param.name + " are not all finite");
    SLUICE_CHECK(
        !is_of_squares || std::none_of(from, from + flat.numel(), [](float v) { return v < 0; }),
        "values for " + moment_names()[*moment] + " of parameter " + param.name +
            " are sums of squares, and some are negative");
    by_layout[place.layout].push_back({&param, flat});
  }
  for (const auto& [layout, of_layout] : by_layout) {
    const std::vector<Change>& changes = of_layout;
    const zero::ShardRange shard = shard_of(layout);
    zero::ShardRange all;
    for (const Change& change : changes) all = hull_of(all, elements_of(*change.param, shard));
    resources_->updater
        ->begin_visit(layout, StateUpdater::Access::write, all,
                      [&changes, first = shard.begin, moment](const StateUpdater::Values& shown) {
                        for (const auto& [param, flat] : changes) {
                          const Overlap part = overlap_of(shown, first, moment, *param);
                          std::copy_n(flat.const_data_ptr<float>() + part.offset_count,
                                      part.values.size(), part.values.begin());
                        }
                      })
        .finish();
    ++weights_version_;
    // Another state than the one of this step that is saved already.
    ++progress_.order;
    progress_.committed_step = -1;
  }
}

void LoopCore::show(std::size_t unit) {
  enter(unit, Pass::evaluation);
  units_.mark_shown(unit, 1);
}

void LoopCore::hide(std::size_t unit) {
  const c10::InferenceMode ordinary(false);
  const OutsideBudget outside;
  // There may be no memory for the copies. The unit is left all the same, else no step could end.
  const std::exception_ptr error = error_of([&] { units_.keep_aliases(unit); });
  units_.mark_shown(unit, -1);
  leave(unit);
  if (error) std::rethrow_exception(error);
}

// The gradient of the step so far comes to the device, and goes home again, unless it stays there
// for the next micro-batch.
void LoopCore::show_gradient(const std::string& name, Access access,
                             const std::function<void(Tensor)>& show) {
  const ParamPlace place = units_.find(name);
  const zero::ParamLayout& param = begin_access(place, access);
  check_stream();
  SLUICE_CHECK(!completed_[place.layout],
               "the gradient of " + name +
                   " is gone: its backward has updated the unit (optimizer_in_backward). Leave "
                   "that key out to see gradients");
  const zero::ShardedUnit& unit = *resources_->units[place.layout];
  const bool stays = unit.gradient_state() == zero::GradientState::accumulating;
  if (!stays && unit.gradient_state() != zero::GradientState::waiting) return;
  const torch::NoGradGuard no_grad;
  if (!stays) gradients_->begin({place.layout});
  const Tensor flat =
      tensor_over(unit.gradients(), plan_.config.gradient_dtype(), resources_->compute.where);
  if (stays) return show(models::view_of(param, flat));
  const auto send_home = [&] {
    // The other ranks add their parts again.
    const zero::ShardRange own = shard_of(place.layout);
    const auto end = static_cast<std::int64_t>(own.begin + own.count);
    flat.narrow(0, 0, static_cast<std::int64_t>(own.begin)).zero_();
    flat.narrow(0, end, flat.numel() - end).zero_();
    drop_on_error([&] {
      gradients_->send({place.layout}, 1);
      gradients_->finish_moves();
    });
  };
  try {
    show(models::view_of(param, flat));
  } catch (...) {
    send_home();  // a unit whose gradient is not at home has no update
    throw;
  }
  send_home();
}

Tensor LoopCore::gradient(const std::string& name) {
  const OutsideBudget outside;
  Tensor copy;
  show_gradient(name, Access::read, [&](const Tensor& gradient) { copy = gradient.clone(); });
  if (!copy.defined()) return copy;
  return sum_over(*resources_->communicator, copy, "the gradient of parameter " + name);
}

void LoopCore::set_gradient(const std::string& name, const Tensor& values) {
  const ParamPlace place = units_.find(name);
  check_shape(plan_.layouts[place.layout].params[place.param], values);
  bool set = false;
  show_gradient(name, Access::write, [&](const Tensor& gradient) {
    gradient.copy_(values);
    set = true;
  });
  SLUICE_CHECK(set, "parameter " + name + " has no gradient: it is set after a backward");
}

}  // namespace sluice::train
