#pragma once
// OwnUnits: the units that a user's loop is made of, and the layouts that their parameters lie in:
// one for what trains, one for what is frozen. Binds a unit's parameters to gathered bytes.
//
// Confined to the thread that trains.

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "sluice/plan/make_plan.hpp"
#include "sluice/train/engine.hpp"
#include "sluice/zero/sharded_unit.hpp"
#include "update/state_updater.hpp"

namespace sluice::train {

// Where a parameter lies: an index of the layouts, and one of that layout's parameters.
struct ParamPlace {
  std::size_t layout = 0;
  std::size_t param = 0;
};

struct OwnUnit {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  UnitFunction forward;
  Tensors registered;                // the module's parameters
  Tensors params;                    // those and what it also uses, each once
  std::vector<ParamPlace> places;    // by params
  std::vector<std::size_t> gathers;  // layouts, ascending
  std::vector<std::size_t> trains;   // those of them that are not frozen
};

class OwnUnits {
 public:
  // Throws InvalidArgument on a name that is taken, and no module.
  std::size_t add(OwnUnit unit);
  // Lays all parameters out. Throws InvalidArgument naming a parameter that cannot be trained here,
  // and when there is none at all.
  plan::OwnModel lay_out(int world_size);

  const OwnUnit& operator[](std::size_t unit) const { return units_[unit]; }
  std::size_t size() const { return units_.size(); }
  const std::vector<zero::UnitLayout>& layouts() const { return layouts_; }
  // Throws InvalidArgument when there is no parameter of this name.
  ParamPlace find(const std::string& name) const;

  // Where parameters are bound from now on; before that, on the CPU.
  void use_device(torch::Device device) { device_ = device; }
  // Initial values of a layout, from the modules' parameters, for the updater's thread.
  StateUpdater::Fill fill_of(std::size_t layout) const;
  // The same as one flat tensor in its data type.
  void write_values(std::size_t layout, const torch::Tensor& flat) const;
  // The parameters' values are not needed any more: they become empty tensors of `dtype`.
  void drop_values(std::size_t layout, torch::Dtype dtype);

  // Throws InvalidArgument when the module has other parameters than when it was added, or
  // something else has given them bytes.
  void check_unbound(std::size_t unit, torch::Dtype dtype) const;
  // Points a unit's parameters at the gathered weights of its layouts. Tensors that LibTorch saved
  // while it was bound before see these weights too.
  void bind(std::size_t unit, const std::vector<std::unique_ptr<zero::ShardedUnit>>& sharded,
            torch::Dtype dtype);
  void bind_gradients(std::size_t unit,
                      const std::vector<std::unique_ptr<zero::ShardedUnit>>& sharded, DType dtype);
  void unbind(std::size_t unit);
  void unbind_all();
  // Whether a tensor lies in the gathered weights.
  bool is_weight(const torch::Tensor& tensor) const;

 private:
  void place_params(OwnUnit& unit, int world_size);
  ParamPlace place_new(const OwnUnit& unit, const std::string& name, const torch::Tensor& param,
                       std::size_t& trained, std::size_t& frozen);
  torch::Tensor flat(std::size_t layout, torch::Dtype dtype);

  std::vector<OwnUnit> units_;
  std::vector<zero::UnitLayout> layouts_;
  std::vector<Tensors> values_;  // by layout and parameter
  std::unordered_map<const c10::TensorImpl*, ParamPlace> known_;
  // By layout: over the gathered weights while they are bound, over nothing otherwise; always the
  // same storage, which graphs that are kept refer to.
  Tensors flats_;
  torch::Device device_ = torch::kCPU;
};

}  // namespace sluice::train
