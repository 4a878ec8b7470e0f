#include "sluice/train/hooked_loop.hpp"

#include <memory>
#include <utility>

#include "ranks/same_config.hpp"
#include "ranks/shared_facts.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/launch_environment.hpp"
#include "sluice/base/log.hpp"
#include "sluice/offload/device.hpp"
#include "sluice/plan/plan_text.hpp"
#include "user_loop/loop_core.hpp"
#include "user_loop/unused_keys.hpp"

namespace sluice::train {

namespace {

RunDevice make_device(const plan::Plan& plan) {
  // On a GPU, the script has used LibTorch's allocator before.
  const bool budgeted = plan.config.sluice.device_bytes.kind != config::ByteBudget::Kind::automatic;
  return budgeted && !plan.device.gpu ? make_run_device(plan, nullptr)
                                      : make_device_beside_libtorch(plan);
}

// The launcher's variables say which ranks share a host. Without them: as if all did. A script that
// made its ranks itself may have variables that describe no rank.
RankPlace place_of(const config::TrainConfig& config) {
  LaunchEnvironment launch;
  try {
    launch = launch_environment();
  } catch (const InvalidArgument& error) {
    log(LogLevel::debug, error.what());
  }
  const bool known = launch.world_size == config.world_size && launch.rank == config.rank;
  return {.rank = config.rank,
          .size = config.world_size,
          .local_rank = known ? launch.local_rank : config.rank,
          .local_size = known ? launch.local_size : config.world_size,
          .launcher = launch.launcher};
}

// Null communicators: one rank.
RankLinks compared_links(const config::TrainConfig& config,
                         std::unique_ptr<zero::Communicator> communicator,
                         std::unique_ptr<zero::Communicator> gather_communicator) {
  if (communicator) require_same_config(*communicator, config);
  return {std::move(communicator), std::move(gather_communicator)};
}

plan::MachineFacts facts_of(const config::TrainConfig& config) {
  if (config.world_size == 1) return plan::probe_machine(config);
  return share_of_host(plan::probe_machine(config), place_of(config));
}

}  // namespace

HookedLoop::HookedLoop(const config::TrainConfig& config, const EngineOptions& options,
                       std::unique_ptr<zero::Communicator> communicator,
                       std::unique_ptr<zero::Communicator> gather_communicator)
    : core_(std::make_unique<LoopCore>(
          note_unused_keys(config, LoopKind::hooked), options,
          BroughtDevice{.facts = facts_of, .make = make_device},
          compared_links(config, std::move(communicator), std::move(gather_communicator)))) {}

HookedLoop::~HookedLoop() = default;

std::size_t HookedLoop::add_unit(const std::string& name,
                                 const std::vector<std::pair<std::string, torch::Tensor>>& params,
                                 const std::vector<std::size_t>& inside) {
  OwnUnit unit;
  unit.name = name;
  unit.inside = inside;
  for (const auto& [param, value] : params) unit.named.push_back({param, value});
  return core_->add_unit(std::move(unit));
}

void HookedLoop::initialize() {
  core_->initialize();
  if (core_->device().is_cpu()) core_->units().make_nowhere();
}

void HookedLoop::preview() {
  core_->preview();
}

void HookedLoop::enter(std::size_t unit, Pass pass) {
  core_->check_whole();
  core_->check_stream();
  core_->enter(unit, pass);
}

void HookedLoop::leave(std::size_t unit) {
  core_->leave(unit);
}

bool HookedLoop::is_weight(const torch::Tensor& tensor) const {
  return core_->units().is_weight(tensor);
}

void HookedLoop::show(std::size_t unit) {
  core_->check_whole();
  core_->check_stream();
  core_->show(unit);
}

void HookedLoop::hide(std::size_t unit) {
  core_->hide(unit);
}

void HookedLoop::load_failed(const std::string& directory) {
  core_->load_failed(directory);
}

void HookedLoop::begin_backward(const std::vector<GroupValues>& groups,
                                std::optional<bool> is_last) {
  core_->begin_backward(groups, is_last);
}

bool HookedLoop::speculates() const {
  return core_->speculates();
}

bool HookedLoop::updates_in_backward() const {
  return core_->updates_in_backward();
}

bool HookedLoop::is_half_updated() const {
  return core_->is_half_updated();
}

bool HookedLoop::waits_for_step() const {
  return core_->waits_for_step();
}

void HookedLoop::begin_gradients(std::size_t unit) {
  core_->begin_gradients(unit);
}

void HookedLoop::send_gradients(std::size_t unit, const std::vector<std::size_t>& awaited) {
  core_->send_gradients(unit, awaited);
}

void HookedLoop::add_loss(const torch::Tensor& loss) {
  core_->add_loss(loss);
}

void HookedLoop::end_micro_batch() {
  core_->end_micro_batch();
}

void HookedLoop::forget_gradients() {
  core_->forget_gradients();
}

std::int64_t HookedLoop::drops() const {
  return core_->drops();
}

StepResult HookedLoop::end_step(const std::vector<GroupValues>& groups) {
  core_->check_whole();
  return core_->end_step(groups);
}

void HookedLoop::finish() {
  if (core_->initialized()) core_->finish();
}

torch::Tensor HookedLoop::parameter(const std::string& name) {
  return core_->parameter(name);
}

std::vector<torch::Tensor> HookedLoop::parameters(const std::vector<std::string>& names) {
  return core_->parameters(names);
}

void HookedLoop::set_parameters(const std::map<std::string, torch::Tensor>& values) {
  core_->set_parameters(values);
}

std::vector<std::string> HookedLoop::moment_names() const {
  return core_->moment_names();
}

torch::Tensor HookedLoop::master(const std::string& name) {
  return core_->state(name, std::nullopt);
}

torch::Tensor HookedLoop::moment(const std::string& name, std::size_t index) {
  SLUICE_CHECK(index < moment_names().size(), "there is no moment " + std::to_string(index));
  return core_->state(name, index);
}

void HookedLoop::set_master(const std::string& name, const torch::Tensor& values) {
  core_->set_states({{name, values}}, std::nullopt);
}

void HookedLoop::set_moment(const std::string& name, std::size_t index,
                            const torch::Tensor& values) {
  SLUICE_CHECK(index < moment_names().size(), "there is no moment " + std::to_string(index));
  core_->set_states({{name, values}}, index);
}

torch::Tensor HookedLoop::gradient(const std::string& name) {
  return core_->gradient(name);
}

void HookedLoop::set_gradient(const std::string& name, const torch::Tensor& values) {
  core_->set_gradient(name, values);
}

void HookedLoop::save_checkpoint(const std::string& directory) {
  core_->save_checkpoint(directory);
}

std::int64_t HookedLoop::load_checkpoint(const std::string& directory) {
  return core_->load_checkpoint(core_->read_checkpoint(directory));
}

std::string HookedLoop::loaded_from() const {
  return core_->loaded_from();
}

std::vector<HookedLoop::Group> HookedLoop::groups() const {
  const plan::Plan& plan = core_->plan();
  std::vector<Group> groups;
  for (const models::ParamGroup& group : plan.groups.groups)
    groups.push_back({.parameters = {}, .optimizer = group.optimizer});
  for (std::size_t unit = 0; unit < plan.layouts.size(); ++unit) {
    for (const models::GroupSegment& segment : plan.groups.segments[unit]) {
      for (const zero::ParamLayout& param : plan.layouts[unit].params) {
        if (param.offset_count >= segment.begin &&
            param.offset_count < segment.begin + segment.count)
          groups[segment.group].parameters.push_back(param.name);
      }
    }
  }
  return groups;
}

EngineCounters HookedLoop::counters() const {
  return core_->counters();
}

torch::Device HookedLoop::device() const {
  return core_->device();
}

const config::TrainConfig& HookedLoop::config() const {
  return core_->config();
}

std::string HookedLoop::plan_table() const {
  return plan::plan_table(core_->plan());
}

std::string HookedLoop::plan_json() const {
  return plan::plan_json(core_->plan(), /*prediction=*/{});
}

std::vector<std::string> HookedLoop::choices() const {
  return core_->plan().choices;
}

std::int64_t HookedLoop::steps() const {
  return core_->progress().step;
}

std::int64_t HookedLoop::updates() const {
  return core_->progress().updates;
}

double HookedLoop::loss_scale() const {
  return core_->progress().loss_scaler.scale();
}

double HookedLoop::gradient_divisor() const {
  return config().zero.reduction.divisor(config().world_size);
}

std::int64_t HookedLoop::weights_version() const {
  return core_->weights_version();
}

}  // namespace sluice::train
