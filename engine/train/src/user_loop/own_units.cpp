#include "user_loop/own_units.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "device/tensor_bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"
#include "sluice/models/bound_params.hpp"
#include "sluice/plan/make_plan.hpp"
#include "user_loop/nan_pages.hpp"

namespace sluice::train {

using torch::Tensor;

namespace {

constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

void check_param(const std::string& name, const Tensor& param) {
  const torch::Device at = param.device();
  SLUICE_CHECK((at.is_cpu() || at.is_cuda() || at.is_meta()) && param.layout() == torch::kStrided,
               "parameter " + name + " is not a dense tensor in the memory of the CPU or a GPU");
  const torch::Dtype dtype = param.scalar_type();
  SLUICE_CHECK(dtype == torch::kFloat32 || dtype == torch::kBFloat16 || dtype == torch::kFloat16 ||
                   dtype == torch::kFloat64,
               "parameter " + name + " is " + std::string(torch::toString(dtype)) +
                   "; fp32, bf16, fp16 and fp64 can be trained");
}

template <typename T>
void convert(const Tensor& from, std::uint64_t begin, std::span<float> to) {
  const T* const values = from.const_data_ptr<T>() + begin;
  std::transform(values, values + to.size(), to.begin(),
                 [](const T& value) { return static_cast<float>(value); });
}

// Converts elements from `begin` on to fp32, without LibTorch: the updater's thread calls it.
void read_values(const Tensor& from, std::uint64_t begin, std::span<float> to) {
  switch (from.scalar_type()) {
    case torch::kFloat32:
      return convert<float>(from, begin, to);
    case torch::kBFloat16:
      return convert<c10::BFloat16>(from, begin, to);
    case torch::kFloat16:
      return convert<c10::Half>(from, begin, to);
    default:
      return convert<double>(from, begin, to);
  }
}

// Makes `memory` the bytes of the tensor's storage.
void point(const Tensor& flat, at::DataPtr memory) {
  flat.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
}

void add_once(std::vector<std::size_t>& list, std::size_t value) {
  const auto at = std::lower_bound(list.begin(), list.end(), value);
  if (at == list.end() || *at != value) list.insert(at, value);
}

// Files of weights and states have UTF-8 names: another one would not be found again.
void check_name(const std::string& name) {
  for (std::string_view rest = name; !rest.empty();) {
    const std::size_t length = utf8_length(rest);
    SLUICE_CHECK(length > 0, "the name \"" + name + "\" of a unit or a parameter is no UTF-8");
    rest.remove_prefix(length);
  }
}

}  // namespace

std::size_t OwnUnits::add(OwnUnit unit) {
  SLUICE_CHECK(!unit.name.empty() && unit.name.size() <= kMostNameBytes,
               "the name of a unit has " + std::to_string(unit.name.size()) +
                   " bytes, and checkpoints take 1 to 240: \"" + unit.name.substr(0, 32) + "\"");
  check_name(unit.name);
  for (const OwnUnit& other : units_)
    SLUICE_CHECK(other.name != unit.name, "there are two units " + unit.name);
  if (unit.module) {
    for (const auto& param : unit.module->named_parameters()) {
      check_name(param.key());
      unit.named.push_back({unit.name + "." + param.key(), param.value()});
    }
  }
  units_.push_back(std::move(unit));
  return units_.size() - 1;
}

plan::OwnModel OwnUnits::lay_out(int world_size) {
  plan::OwnModel model;
  for (OwnUnit& unit : units_) {
    place_params(unit, world_size);
    model.calls.push_back(unit.gathers);
    model.backwards.resize(layouts_.size(), 0);
    for (const std::size_t layout : unit.gathers) ++model.backwards[layout];
    for (const std::size_t outer : unit.inside) {
      for (const std::size_t layout : units_[outer].gathers) add_once(model.calls.back(), layout);
    }
  }
  bound_.assign(layouts_.size(), 0);
  shown_ = bound_;
  SLUICE_CHECK(!layouts_.empty(), "no unit has a parameter: there is nothing to train");
  model.layouts = layouts_;
  return model;
}

// The layouts that a unit begins follow each other in `layouts_`.
void OwnUnits::place_params(OwnUnit& unit, int world_size) {
  std::size_t trained = kNone;
  std::size_t frozen = kNone;
  const std::size_t first = layouts_.size();
  const Tensors also_uses = std::exchange(unit.params, {});
  const auto add = [&](const Tensor& param, const ParamPlace& place) {
    const auto same = [&](const Tensor& other) { return other.is_same(param); };
    if (std::any_of(unit.params.begin(), unit.params.end(), same)) return;
    unit.params.push_back(param);
    unit.places.push_back(place);
    add_once(unit.gathers, place.layout);
    if (!layouts_[place.layout].frozen) add_once(unit.trains, place.layout);
  };
  for (const auto& [name, param] : unit.named) {
    const auto found = known_.find(param.unsafeGetTensorImpl());
    add(param,
        found != known_.end() ? found->second : place_new(unit, name, param, trained, frozen));
  }
  for (const Tensor& param : also_uses) {
    const auto found = known_.find(param.unsafeGetTensorImpl());
    SLUICE_CHECK(found != known_.end(), "unit " + unit.name +
                                            " also uses a tensor that is no parameter of a unit "
                                            "before it");
    add(param, found->second);
  }
  for (std::size_t i = first; i < layouts_.size(); ++i)
    zero::finish_layout(layouts_[i], world_size);
}

ParamPlace OwnUnits::place_new(const OwnUnit& unit, const std::string& name, const Tensor& param,
                               std::size_t& trained, std::size_t& frozen) {
  check_param(name, param);
  const bool trains = param.requires_grad();
  std::size_t& layout = trains ? trained : frozen;
  if (layout == kNone) {
    layout = layouts_.size();
    zero::UnitLayout made;
    made.name = trains ? unit.name : unit.name + ".frozen";
    made.frozen = !trains;
    layouts_.push_back(std::move(made));
    values_.emplace_back();
  }
  SLUICE_CHECK(names_.insert(name).second, "two parameters are named " + name +
                                               ", one of them in unit " + unit.name +
                                               ": give the unit another name");
  zero::add_param(layouts_[layout], name, param.sizes().vec());
  values_[layout].push_back(param);
  const ParamPlace place{layout, layouts_[layout].params.size() - 1};
  known_.emplace(param.unsafeGetTensorImpl(), place);
  return place;
}

ParamPlace OwnUnits::find(const std::string& name) const {
  for (std::size_t l = 0; l < layouts_.size(); ++l) {
    for (std::size_t p = 0; p < layouts_[l].params.size(); ++p) {
      if (layouts_[l].params[p].name == name) return {l, p};
    }
  }
  for (const OwnUnit& unit : units_) {
    for (const NamedParam& named : unit.named)  // tied: it lies where another unit has it
      if (named.name == name) return known_.at(named.value.unsafeGetTensorImpl());
  }
  throw InvalidArgument("no unit has a parameter " + name);
}

void OwnUnits::check_has_values(std::size_t layout) const {
  for (std::size_t p = 0; p < values_[layout].size(); ++p)
    SLUICE_CHECK(!values_[layout][p].is_meta(), "parameter " + layouts_[layout].params[p].name +
                                                    " is on the meta device: it has no values");
}

bool OwnUnits::has_values_on_gpu(std::size_t layout) const {
  return std::any_of(values_[layout].begin(), values_[layout].end(),
                     [](const Tensor& value) { return value.is_cuda(); });
}

StateUpdater::Fill OwnUnits::fill_of(std::size_t layout, std::uint64_t first_count) const {
  Tensors values;
  check_has_values(layout);
  for (const Tensor& value : values_[layout])
    values.push_back(value.detach().to(torch::kCPU).contiguous());
  return [params = layouts_[layout].params, values, first_count](std::uint64_t from,
                                                                 std::span<float> to) {
    const std::uint64_t offset = first_count + from;
    std::fill(to.begin(), to.end(), 0.0F);  // padding
    for (std::size_t p = 0; p < params.size(); ++p) {
      const zero::ShardRange part = zero::part_in(params[p], offset, to.size());
      if (part.count == 0) continue;
      read_values(values[p], part.begin - params[p].offset_count,
                  to.subspan(part.begin - offset, part.count));
    }
  };
}

void OwnUnits::write_values(std::size_t layout, const Tensor& flat) const {
  const torch::NoGradGuard no_grad;
  check_has_values(layout);
  flat.zero_();
  for (std::size_t p = 0; p < values_[layout].size(); ++p)
    models::view_of(layouts_[layout].params[p], flat).copy_(values_[layout][p]);
}

void OwnUnits::drop_values(std::size_t layout, torch::Dtype dtype) {
  const torch::NoGradGuard no_grad;
  for (const Tensor& param : values_[layout]) {
    param.mutable_grad().reset();
    param.set_data(
        torch::empty({0}, param.options().requires_grad(false).dtype(dtype).device(device_)));
  }
}

void OwnUnits::give_values(std::size_t layout, const Tensors& values) {
  const torch::NoGradGuard no_grad;
  for (std::size_t p = 0; p < values.size(); ++p) values_[layout][p].set_data(values[p]);
  values_[layout].clear();  // nothing is bound to them any more
}

void OwnUnits::check_unbound(std::size_t index, torch::Dtype dtype, bool records_graph) const {
  const OwnUnit& unit = units_[index];
  const Tensors now = unit.module ? unit.module->parameters() : Tensors();
  const bool same =
      !unit.module ||
      std::equal(now.begin(), now.end(), unit.named.begin(), unit.named.end(),
                 [](const Tensor& a, const NamedParam& b) { return a.is_same(b.value); });
  SLUICE_CHECK(same, "unit " + unit.name +
                         " has other parameters than when it was added: its module's parameters "
                         "must not be replaced");
  for (std::size_t i = 0; i < unit.params.size(); ++i) {
    if (bound_[unit.places[i].layout] > 0) continue;
    const zero::UnitLayout& layout = layouts_[unit.places[i].layout];
    const std::string& name = layout.params[unit.places[i].param].name;
    const Tensor& param = unit.params[i];
    SLUICE_CHECK(param.numel() == 0 && param.scalar_type() == dtype,
                 "parameter " + name +
                     " was given other bytes than the engine's: after initialize() its module must "
                     "not be loaded, moved or converted (to())");
    // Without gradients it makes no difference: PEFT switches to an adapter so, for a reference.
    SLUICE_CHECK(!layout.frozen || !param.requires_grad() || !records_graph,
                 "parameter " + name +
                     " was frozen at initialize(), which decides what trains: it must not require "
                     "gradients later");
  }
}

void OwnUnits::check_trained() const {
  for (const OwnUnit& unit : units_) {
    for (std::size_t i = 0; i < unit.params.size(); ++i) {
      const zero::UnitLayout& layout = layouts_[unit.places[i].layout];
      SLUICE_CHECK(layout.frozen || unit.params[i].requires_grad(),
                   "parameter " + layout.params[unit.places[i].param].name +
                       " was to be trained at initialize(), and does not require a gradient at the "
                       "end of a step: freeze it before initialize(), or only during a forward");
    }
  }
}

void OwnUnits::make_nowhere() {
  std::uint64_t largest_count = 0;
  for (const zero::UnitLayout& layout : layouts_)
    largest_count = std::max(largest_count, layout.flat_count);
  nowhere_ = make_nan_pages(largest_count * sizeof(float));
}

at::DataPtr OwnUnits::nowhere() const {
  if (!nowhere_) return {nullptr, device_};
  // Shared with the storage: a graph may outlive this object.
  return {nowhere_.get(), new std::shared_ptr<void>(nowhere_),
          [](void* shared) { delete static_cast<std::shared_ptr<void>*>(shared); }, device_};
}

Tensor OwnUnits::make_flat(std::size_t layout, torch::Dtype dtype, at::DataPtr bytes) const {
  const auto count = static_cast<std::int64_t>(layouts_[layout].flat_count);
  const c10::Storage storage(c10::Storage::use_byte_size_t(),
                             static_cast<std::size_t>(count) * c10::elementSize(dtype),
                             std::move(bytes));
  return torch::empty({0}, torch::TensorOptions().dtype(dtype).device(device_))
      .set_(storage, 0, {count});
}

Tensor OwnUnits::flat(std::size_t layout, torch::Dtype dtype) {
  flats_.resize(layouts_.size());
  if (!flats_[layout].defined()) flats_[layout] = make_flat(layout, dtype, nowhere());
  return flats_[layout];
}

Tensors OwnUnits::views_of(std::size_t layout, const Tensor& flat) const {
  Tensors views;
  for (const zero::ParamLayout& param : layouts_[layout].params)
    views.push_back(models::view_of(param, flat));
  return views;
}

void OwnUnits::bind(std::size_t index, const ShardedUnits& sharded, torch::Dtype dtype) {
  const torch::NoGradGuard no_grad;
  for (const std::size_t layout : units_[index].gathers) {
    if (bound_[layout]++ > 0) continue;
    const Tensor& weights = flat(layout, dtype);
    point(weights, at::DataPtr(sharded[layout]->weights().address(), device_));
    models::bind_params(values_[layout], views_of(layout, weights));
  }
}

// The storage of these tensors gets a copy of the bytes, and the parameters get another storage.
void OwnUnits::keep_aliases(std::size_t index) {
  const torch::NoGradGuard no_grad;
  for (const std::size_t layout : units_[index].gathers) {
    if (bound_[layout] != 1) continue;  // it stays bound
    const c10::Storage shared = flats_[layout].storage();
    // A script may have given a parameter other bytes.
    const auto parameters = std::ranges::count_if(
        values_[layout], [&](const Tensor& value) { return value.is_alias_of(flats_[layout]); });
    if (shared.use_count() <= 2 + static_cast<std::size_t>(parameters)) continue;  // and the flat
    Tensor copy = flats_[layout].clone();
    flats_[layout] = make_flat(layout, copy.scalar_type(),
                               at::DataPtr(flats_[layout].mutable_data_ptr(), device_));
    const Tensors views = views_of(layout, flats_[layout]);
    for (std::size_t p = 0; p < views.size(); ++p) values_[layout][p].set_data(views[p]);
    shared.unsafeGetStorageImpl()->set_data_ptr_noswap(
        copy.storage().unsafeGetStorageImpl()->set_data_ptr({nullptr, device_}));
  }
}

void OwnUnits::bind_gradients(std::size_t layout, const ShardedUnits& sharded, DType dtype) {
  const Tensor buffer = tensor_over(sharded[layout]->gradients(), dtype, device_);
  models::bind_gradients(values_[layout], views_of(layout, buffer));
}

void OwnUnits::check_gradients(std::size_t layout, const ShardedUnits& sharded) const {
  const void* const buffer = sharded[layout]->gradients().address();
  for (std::size_t p = 0; p < values_[layout].size(); ++p) {
    const Tensor& gradient = values_[layout][p].grad();
    const zero::ParamLayout& param = layouts_[layout].params[p];
    SLUICE_CHECK(gradient.defined(),
                 "the gradient of " + param.name +
                     " was removed during backward (set to None by a hook), as by an optimizer "
                     "that steps in hooks on gradients: step() needs the gradients of all "
                     "parameters, so set \"optimizer_in_backward\" instead");
    SLUICE_CHECK(gradient.storage().data() == buffer &&
                     gradient.storage_offset() == static_cast<std::int64_t>(param.offset_count),
                 "the gradient of " + param.name +
                     " was replaced during backward (by a hook or create_graph): it is a view of "
                     "the engine's buffer, to be changed in place");
  }
}

void OwnUnits::check_no_gradients() const {
  for (std::size_t layout = 0; layout < layouts_.size(); ++layout) {
    for (std::size_t p = 0; p < values_[layout].size(); ++p) {
      if (!values_[layout][p].grad().defined()) continue;
      throw InvalidArgument("parameter " + layouts_[layout].params[p].name +
                            " has a gradient from outside its unit's backward: a tensor left the "
                            "unit other than as an output of its forward");
    }
  }
}

void OwnUnits::unbind(std::size_t index) {
  for (const std::size_t layout : units_[index].gathers) {
    bound_[layout] = std::max(0, bound_[layout] - 1);
    if (bound_[layout] > 0) continue;
    models::unbind_params(values_[layout]);
    point(flats_[layout], nowhere());
  }
}

void OwnUnits::unbind_all() {
  shown_.assign(layouts_.size(), 0);
  unbind_passes();
}

void OwnUnits::unbind_passes() {
  for (std::size_t layout = 0; layout < layouts_.size(); ++layout) {
    if (shown_[layout] > 0) {
      for (const Tensor& param : values_[layout]) param.mutable_grad().reset();
    } else {
      models::unbind_params(values_[layout]);
      if (bound_[layout] > 0) point(flats_[layout], nowhere());
    }
  }
  bound_ = shown_;
}

bool OwnUnits::is_weight(const Tensor& tensor) const {
  if (!tensor.has_storage()) return false;
  return std::any_of(flats_.begin(), flats_.end(), [&](const Tensor& flat) {
    return flat.defined() && flat.is_alias_of(tensor);
  });
}

}  // namespace sluice::train
