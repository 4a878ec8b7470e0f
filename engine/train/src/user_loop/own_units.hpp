#pragma once
// OwnUnits: the units of a user's loop, and the layouts of their parameters: one for the trained
// parameters of a module, one for the frozen ones. Binds a unit's parameters to gathered bytes.
//
// Confined to the thread that trains.

#include <torch/nn/module.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "sluice/plan/make_plan.hpp"
#include "sluice/train/engine.hpp"
#include "sluice/zero/sharded_unit.hpp"
#include "update/state_updater.hpp"

namespace sluice::train {

// Place of a parameter: index of its layout, and its index in that layout.
struct ParamPlace {
  std::size_t layout = 0;
  std::size_t param = 0;
};

struct NamedParam {
  std::string name;  // as it is saved: "h.0.fc.weight"
  torch::Tensor value;
};

// Limits the name of a unit: the names of its shards in a state add the part's.
constexpr std::size_t kMostNameBytes = 240;

struct OwnUnit {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;  // null: `named` has the parameters, hooks the calls
  UnitFunction forward;
  std::vector<NamedParam> named;
  std::vector<std::size_t> inside;   // units that are entered whenever this one is
  Tensors params;                    // these and the parameters it also uses, each once
  std::vector<ParamPlace> places;    // by params
  std::vector<std::size_t> gathers;  // layouts, ascending
  std::vector<std::size_t> trains;   // the layouts of `gathers` that are not frozen
};

using ShardedUnits = std::vector<std::unique_ptr<zero::ShardedUnit>>;  // by layout

class OwnUnits {
 public:
  // Throws InvalidArgument on a name that is taken.
  std::size_t add(OwnUnit unit);
  // Lays all parameters out. Throws InvalidArgument naming a parameter that cannot be trained here,
  // and when there is none at all.
  plan::OwnModel lay_out(int world_size);

  const OwnUnit& operator[](std::size_t unit) const { return units_[unit]; }
  std::size_t size() const { return units_.size(); }
  const std::vector<zero::UnitLayout>& layouts() const { return layouts_; }
  // By any of a tied parameter's names. Throws InvalidArgument when there is none of this name.
  ParamPlace find(const std::string& name) const;

  // Sets the device that parameters are bound on. The CPU before this call.
  void use_device(torch::Device device) { device_ = device; }
  // Whether some values of a layout are on a GPU: fill_of() copies them all to host memory.
  bool has_values_on_gpu(std::size_t layout) const;
  // Initial values of a layout, from the modules' parameters, for any thread.
  // `first_count`: the layout's element at which the fill begins.
  StateUpdater::Fill fill_of(std::size_t layout, std::uint64_t first_count = 0) const;
  // Writes the initial values of a layout to one flat tensor, in the tensor's data type.
  void write_values(std::size_t layout, const torch::Tensor& flat) const;
  // Frees the parameters' values: the parameters become empty tensors of `dtype`.
  void drop_values(std::size_t layout, torch::Dtype dtype);
  // Makes `values`, by parameter, the parameters' own, for good. Nothing is bound, or will be.
  void give_values(std::size_t layout, const Tensors& values);

  // Throws InvalidArgument when the module's parameters were replaced since it was added, were
  // given bytes by other code, or require gradients although they are frozen and the caller
  // records a graph.
  void check_unbound(std::size_t unit, torch::Dtype dtype, bool records_graph) const;
  // Throws InvalidArgument when a parameter that trains does not require a gradient. It may do
  // without during a forward, and has no gradient from there.
  void check_trained() const;
  // Points the parameters of the unit's layouts at the gathered weights. Tensors that LibTorch
  // saved during an earlier binding see these weights too. Counts: a layout stays bound until as
  // many unbind() have come.
  void bind(std::size_t unit, const ShardedUnits& sharded, torch::Dtype dtype);
  // Before an unbind(): tensors of others that alias the unit's weights keep their values after it,
  // in memory of their own. Saved graphs have such tensors.
  void keep_aliases(std::size_t unit);
  void unbind(std::size_t unit);
  void unbind_all();
  // Marks one binding of the unit as one for a look at its values between passes (`change` 1), or
  // takes the mark back (-1).
  void mark_shown(std::size_t unit, int change) {
    for (const std::size_t layout : units_[unit].gathers) shown_[layout] += change;
  }
  // By layout: how many of its bindings are marked.
  const std::vector<int>& shown() const { return shown_; }
  // Ends the bindings that are not marked, and drops the gradients of all parameters.
  void unbind_passes();
  bool any_shown() const { return std::ranges::any_of(shown_, std::identity()); }
  // Whether a binding is not marked.
  bool any_in_pass() const { return bound_ != shown_; }
  // Points the gradients of a bound layout's parameters at its buffer.
  void bind_gradients(std::size_t layout, const ShardedUnits& sharded, DType dtype);
  // Throws InvalidArgument naming a parameter whose gradient is another tensor now: what was added
  // to it would be lost.
  void check_gradients(std::size_t layout, const ShardedUnits& sharded) const;
  // Throws InvalidArgument naming a parameter with a gradient. Nothing is bound.
  void check_no_gradients() const;
  // From now on, what looks at weights that are not there reads NaN instead of ending the process.
  // For the CPU. After lay_out(). Throws IoError.
  void make_nowhere();
  // True when a tensor aliases the gathered weights.
  bool is_weight(const torch::Tensor& tensor) const;
  // Whether a parameter of a bound layout is a view of its weights.
  bool is_bound(const torch::Tensor& param, std::size_t layout) const {
    return flats_[layout].is_alias_of(param);
  }

 private:
  void place_params(OwnUnit& unit, int world_size);
  ParamPlace place_new(const OwnUnit& unit, const std::string& name, const torch::Tensor& param,
                       std::size_t& trained, std::size_t& frozen);
  torch::Tensor make_flat(std::size_t layout, torch::Dtype dtype, at::DataPtr bytes) const;
  torch::Tensor flat(std::size_t layout, torch::Dtype dtype);
  Tensors views_of(std::size_t layout, const torch::Tensor& flat) const;
  at::DataPtr nowhere() const;
  void check_has_values(std::size_t layout) const;

  std::vector<OwnUnit> units_;
  std::vector<zero::UnitLayout> layouts_;
  std::vector<Tensors> values_;  // by layout and parameter
  std::vector<int> bound_;       // by layout: units that have it bound
  std::vector<int> shown_;       // by layout: those of `bound_` that are marked
  std::unordered_map<const c10::TensorImpl*, ParamPlace> known_;
  std::set<std::string> names_;  // of all parameters
  // By layout: a view of the gathered weights while they are bound, without bytes otherwise. Each
  // keeps its storage, because saved graphs refer to it, until keep_aliases() gives them copies.
  Tensors flats_;
  torch::Device device_ = torch::kCPU;
  std::shared_ptr<void> nowhere_;  // unbound weights lie there; may be null
};

}  // namespace sluice::train
