#include "sluice/train/engine.hpp"

#include <exception>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/launch_environment.hpp"
#include "sluice/base/log.hpp"
#include "sluice/plan/plan_text.hpp"
#include "user_loop/loop.hpp"

namespace sluice::train {

using torch::Tensor;

namespace {

Tensor only_one(Loop& loop, std::size_t unit, const Tensor& input) {
  Tensors outputs = loop.forward(unit, {input});
  SLUICE_CHECK(outputs.size() == 1, "unit " + loop.name_of(unit) + " has " +
                                        std::to_string(outputs.size()) +
                                        " outputs: give its inputs as a vector to have them all");
  return std::move(outputs.front());
}

// Else every process of a launcher would train the same batches by itself.
void check_is_alone() {
  const LaunchEnvironment launch = launch_environment();
  if (launch.world_size == 1) return;
  throw InvalidArgument("rank " + std::to_string(launch.rank) + " of " +
                        std::to_string(launch.world_size) + " (" + launch.launcher +
                        "): a C++ loop of your own trains with one rank. Start one process, or "
                        "train with several ranks by sluice train or from Python");
}

}  // namespace

void detail::refuse_inputs(const std::string& unit, std::size_t given) {
  throw InvalidArgument("unit " + unit + " was given " + std::to_string(given) +
                        " inputs, which its module's forward does not take; add_unit takes a "
                        "function as well");
}

Tensors Unit::operator()(const Tensors& inputs) const {
  const std::shared_ptr<Loop> loop = loop_.lock();
  SLUICE_CHECK(loop != nullptr, "a unit of an engine that is gone is called");
  return loop->forward(index_, inputs);
}

Tensor Unit::operator()(const Tensor& input) const {
  const std::shared_ptr<Loop> loop = loop_.lock();
  SLUICE_CHECK(loop != nullptr, "a unit of an engine that is gone is called");
  return only_one(*loop, index_, input);
}

Engine::Engine(const std::string& config_path, const EngineOptions& options)
    : Engine(config::load_train_config(config_path), options) {}

Engine::Engine(const config::TrainConfig& config, const EngineOptions& options)
    : loop_(std::make_shared<Loop>(config, options)) {
  check_is_alone();
}

Engine::~Engine() {
  try {
    loop_->finish();
  } catch (const std::exception& error) {
    log(LogLevel::error, std::string("the end of training: ") + error.what());
  }
  if (loop_->has_unsaved_steps())
    log(LogLevel::warn, "the weights of step " + std::to_string(loop_->steps()) +
                            " end with their engine: restore_modules() or save_checkpoint() "
                            "before, or \"sluice\": {\"checkpoint_dir\"}, would keep them");
}

Unit Engine::add_unit(const std::string& name, std::shared_ptr<torch::nn::Module> module,
                      UnitFunction forward, const Tensors& also_uses) {
  OwnUnit unit;
  unit.name = name;
  unit.module = std::move(module);
  unit.forward = std::move(forward);
  unit.params = also_uses;
  return {loop_, loop_->add_unit(std::move(unit))};
}

void Engine::set_log_sink(LogSink sink) {
  sluice::set_log_sink(std::move(sink));
}

void Engine::initialize() {
  loop_->initialize();
}

std::int64_t Engine::steps() const {
  return loop_->steps();
}

std::string Engine::plan_table() const {
  return plan::plan_table(loop_->plan());
}

Tensors Engine::forward(const Unit& unit, const Tensors& inputs) {
  check_own(unit);
  return loop_->forward(unit.index_, inputs);
}

Tensor Engine::forward(const Unit& unit, const Tensor& input) {
  check_own(unit);
  return only_one(*loop_, unit.index_, input);
}

void Engine::check_own(const Unit& unit) const {
  SLUICE_CHECK(unit.loop_.lock() == loop_, "the unit belongs to another engine");
}

void Engine::backward(const Tensor& loss) {
  loop_->backward(loss);
}

StepResult Engine::step() {
  return loop_->step();
}

void Engine::finish() {
  loop_->finish();
}

void Engine::restore_modules() {
  loop_->restore_modules();
}

Tensor Engine::parameter(const std::string& name) {
  return loop_->parameter(name);
}

void Engine::save_checkpoint(const std::string& directory) {
  loop_->save_checkpoint(directory);
}

std::int64_t Engine::load_checkpoint(const std::string& directory) {
  return loop_->load_checkpoint(directory);
}

torch::Device Engine::device() const {
  return loop_->device();
}

EngineCounters Engine::counters() const {
  return loop_->counters();
}

}  // namespace sluice::train
