#include "engine/bind_loop.hpp"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/python_communicator.hpp"
#include "sluice/base/error.hpp"
#include "sluice/config/lr_schedule.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/train/hooked_loop.hpp"

namespace sluice::python {

namespace py = pybind11;

namespace {

using train::HookedLoop;
using train::StepResult;

// The configuration of a file, or of a text whose shown name is the path.
struct Source {
  std::string path;
  std::optional<std::string> text;
  std::vector<std::string> tuned;
  std::vector<std::pair<std::string, std::string>> settings;  // keys and values
  std::optional<int> gpu;  // where the configuration leaves the GPU open
};

// The other ranks: null, or an object for each of two threads (python_communicator.hpp).
struct Ranks {
  std::unique_ptr<zero::Communicator> communicator;
  std::unique_ptr<zero::Communicator> gather_communicator;
};

// Continue from the committed state of an earlier process; begin anew, and commit; or use the
// drive as scratch, where checkpoints are what survives.
enum class Resume { yes, no, scratch };

config::TrainConfig load(const Source& source, Resume resume, const Ranks& ranks) {
  config::LoadOptions options{
      .world_size = ranks.communicator ? ranks.communicator->world_size() : 1,
      .tuned_paths = source.tuned,
      .settings = {}};
  for (const auto& [key, value] : source.settings)
    options.settings.push_back({.key = key, .value = value, .flag = "the script's " + key});
  config::TrainConfig config = source.text
                                   ? config::parse_train_config(*source.text, source.path, options)
                                   : config::load_train_config(source.path, options);
  const bool asked = config.origins.find("sluice.durability") != config.origins.end();
  if (resume == Resume::scratch && !asked) config.sluice.durability = Durability::none;
  using Kind = config::ComputeDevice::Kind;
  config::ComputeDevice& device = config.sluice.device;
  if (source.gpu && device.kind != Kind::host && !device.index)
    device = {.kind = Kind::cuda, .index = *source.gpu};
  if (ranks.communicator) config.rank = ranks.communicator->rank();
  return config;
}

// Every method that may wait, or end a tensor, releases the GIL.
class Loop {
 public:
  Loop(const Source& source, bool resident, Resume resume, Ranks ranks) {
    const config::TrainConfig config = load(source, resume, ranks);
    rates_.emplace(config);
    const train::EngineOptions options{.resident = resident,
                                       .resume = resume == Resume::yes,
                                       .scratch = resume == Resume::scratch,
                                       .logs_steps = false};
    hooked_ = std::make_unique<HookedLoop>(config, options, std::move(ranks.communicator),
                                           std::move(ranks.gather_communicator));
  }
  ~Loop() {
    const py::gil_scoped_release release;
    close();
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  HookedLoop* operator->() const {
    SLUICE_CHECK(hooked_ != nullptr, "the engine was destroyed");
    if (is_forked())
      throw Error(
          "a forked child has none of the engine's threads: use the engine in the process that "
          "made it, or start the child with \"spawn\"");
    return hooked_.get();
  }
  // The rate of the schedule for an update, counted from 1.
  double scheduled_rate(std::int64_t update) { return rates_->at(update); }
  // Gives memory and files back; every other call is a ValueError from now on.
  void close() {
    if (is_forked())
      static_cast<void>(hooked_.release());  // it would wait for threads of the parent
    hooked_.reset();
  }

 private:
  bool is_forked() const { return ::getpid() != process_; }

  const pid_t process_ = ::getpid();
  std::unique_ptr<HookedLoop> hooked_;
  std::optional<config::LearningRates> rates_;
};

// A method of HookedLoop as one of Loop.
template <typename Result, typename... Arguments>
auto forward_to(Result (HookedLoop::*method)(Arguments...)) {
  return [method](const Loop& self, Arguments... arguments) {
    return (self.operator->()->*method)(std::forward<Arguments>(arguments)...);
  };
}
template <typename Result, typename... Arguments>
auto forward_to(Result (HookedLoop::*method)(Arguments...) const) {
  return [method](const Loop& self, Arguments... arguments) {
    return (self.operator->()->*method)(std::forward<Arguments>(arguments)...);
  };
}

std::vector<train::GroupValues> values_of(
    const std::vector<std::map<std::string, double>>& groups) {
  std::vector<train::GroupValues> values;
  for (const auto& group : groups) {
    const auto value = [&group](const char* key) -> std::optional<double> {
      const auto found = group.find(key);
      if (found == group.end()) return std::nullopt;
      return found->second;
    };
    values.push_back({.learning_rate = group.at("lr"),
                      .weight_decay = group.at("weight_decay"),
                      .beta1 = value("beta1"),
                      .beta2 = value("beta2"),
                      .eps = value("eps"),
                      .momentum = value("momentum"),
                      .dampening = value("dampening")});
  }
  return values;
}

py::dict values_of(const config::OptimizerConfig& values) {
  using py::literals::operator""_a;
  py::dict all("lr"_a = values.lr, "weight_decay"_a = values.weight_decay);
  if (values.reads("betas")) all["betas"] = py::make_tuple(values.beta1, values.beta2);
  if (values.reads("eps")) all["eps"] = values.eps;
  if (values.reads("momentum")) all["momentum"] = values.momentum;
  if (values.reads("dampening")) all["dampening"] = values.dampening;
  return all;
}

py::dict optimizer_values(const Loop& loop) {
  return values_of(loop->config().optimizer);
}

// Names of parameters, and values, of each group.
py::list groups(const Loop& loop) {
  py::list all;
  for (const train::HookedLoop::Group& group : loop->groups())
    all.append(py::make_tuple(group.parameters, values_of(group.optimizer)));
  return all;
}

py::dict counters(const Loop& loop) {
  const train::EngineCounters now = loop->counters();
  using py::literals::operator""_a;
  return py::dict(
      "h2d_bytes"_a = now.h2d_bytes, "d2h_bytes"_a = now.d2h_bytes,
      "nvme_read_bytes"_a = now.nvme_read_bytes, "nvme_written_bytes"_a = now.nvme_written_bytes,
      "update_stall_seconds"_a = now.update_stall_seconds,
      "fetch_stall_seconds"_a = now.fetch_stall_seconds,
      "gradient_stall_seconds"_a = now.gradient_stall_seconds,
      "speculative_updates_kept"_a = now.speculative_updates_kept,
      "speculative_updates_dropped"_a = now.speculative_updates_dropped,
      "speculative_dropped_seconds"_a = now.speculative_dropped_seconds,
      "device_peak_bytes"_a = now.device_peak_bytes, "host_peak_bytes"_a = now.host_peak_bytes);
}

void bind_values(py::class_<Loop>& loop) {
  const auto value = [&loop](const char* name, auto get) { loop.def_property_readonly(name, get); };
  value("step", forward_to(&HookedLoop::steps));
  value("updates", forward_to(&HookedLoop::updates));
  value("speculates", forward_to(&HookedLoop::speculates));
  value("updates_in_backward", forward_to(&HookedLoop::updates_in_backward));
  value("waits_for_step", forward_to(&HookedLoop::waits_for_step));
  value("is_half_updated", forward_to(&HookedLoop::is_half_updated));
  value("weights_version", forward_to(&HookedLoop::weights_version));
  value("drops", forward_to(&HookedLoop::drops));
  value("loss_scale", forward_to(&HookedLoop::loss_scale));
  value("gradient_divisor", forward_to(&HookedLoop::gradient_divisor));
  value("choices", forward_to(&HookedLoop::choices));
  value("device", [](const Loop& self) { return self->device().str(); });
  value("plan_table", forward_to(&HookedLoop::plan_table));
  value("plan_json", forward_to(&HookedLoop::plan_json));
  const auto key = [&loop](const char* name, auto get) {
    loop.def_property_readonly(name, [get](const Loop& self) { return get(self->config()); });
  };
  using Config = config::TrainConfig;
  key("dtype", [](const Config& config) { return config.compute_dtype(); });
  key("gradient_dtype", [](const Config& config) { return config.gradient_dtype(); });
  key("micro_batch_size", [](const Config& config) { return config.micro_batch_size; });
  key("accumulation_steps",
      [](const Config& config) { return config.gradient_accumulation_steps; });
  key("train_batch_size", [](const Config& config) { return config.train_batch_size; });
  key("clipping", [](const Config& config) { return config.gradient_clipping; });
  key("zero_stage", [](const Config& config) { return config.zero.stage; });
  key("has_schedule", [](const Config& config) {
    return !std::holds_alternative<std::monostate>(config.scheduler);
  });
  key("drop_last", [](const Config& config) { return config.drop_last; });
  key("steps_per_print", [](const Config& config) { return config.monitors.steps_per_print; });
  key("wall_clock_breakdown",
      [](const Config& config) { return config.monitors.wall_clock_breakdown; });
  key("comms_logger", [](const Config& config) {
    using py::literals::operator""_a;
    const config::CommsLoggerConfig& logger = config.monitors.comms_logger;
    return py::dict("enabled"_a = logger.enabled, "verbose"_a = logger.verbose,
                    "prof_all"_a = logger.prof_all, "debug"_a = logger.debug,
                    "prof_ops"_a = logger.prof_ops);
  });
  key("notes", [](const Config& config) { return config.notes; });
  value("optimizer_values", &optimizer_values);
  value("groups", &groups);
  value("moment_names", forward_to(&HookedLoop::moment_names));
}

void bind_step_result(py::module_& module) {
  py::class_<StepResult>(module, "StepResult", "The end of a step.")
      .def_readonly("updated", &StepResult::updated)
      .def_readonly("step", &StepResult::step)
      .def_readonly("loss", &StepResult::loss)
      .def_readonly("gradient_norm", &StepResult::gradient_norm)
      .def_readonly("learning_rate", &StepResult::learning_rate)
      .def_readonly("loss_scale", &StepResult::loss_scale);
}

}  // namespace

void bind_loop(py::module_& module) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::enum_<DType>(module, "DType")
      .value("fp32", DType::fp32)
      .value("bf16", DType::bf16)
      .value("fp16", DType::fp16);
  bind_step_result(module);
  py::class_<Loop> loop(module, "Loop", "Units of a PyTorch module, and their training.");
  loop.def(py::init([](std::string path, std::optional<std::string> text,
                       std::vector<std::string> tuned,
                       std::vector<std::pair<std::string, std::string>> settings, bool resident,
                       std::optional<bool> resume, std::optional<int> gpu, const py::object& ranks,
                       const py::object& gather_ranks) {
             Ranks links;
             if (!ranks.is_none())
               links = {make_python_communicator(ranks), make_python_communicator(gather_ranks)};
             const py::gil_scoped_release release;
             const Resume how = !resume ? Resume::scratch : *resume ? Resume::yes : Resume::no;
             return std::make_unique<Loop>(Source{std::move(path), std::move(text),
                                                  std::move(tuned), std::move(settings), gpu},
                                           resident, how, std::move(links));
           }),
           py::arg("path"), py::arg("text"), py::arg("tuned"), py::arg("settings"),
           py::arg("resident"), py::arg("resume"), py::arg("gpu"), py::arg("ranks"),
           py::arg("gather_ranks"))
      .def("add_unit", forward_to(&HookedLoop::add_unit), py::arg("name"), py::arg("params"),
           py::arg("inside"))
      .def("initialize", forward_to(&HookedLoop::initialize), Unlocked())
      .def("preview", forward_to(&HookedLoop::preview), Unlocked())
      .def(
          "enter",
          [](const Loop& self, std::size_t unit, bool training) {
            self->enter(unit, training ? train::Pass::training : train::Pass::evaluation);
          },
          py::arg("unit"), py::arg("training"), Unlocked())
      .def("leave", forward_to(&HookedLoop::leave), py::arg("unit"), Unlocked())
      .def("is_weight", forward_to(&HookedLoop::is_weight))
      .def("show", forward_to(&HookedLoop::show), py::arg("unit"), Unlocked())
      .def("hide", forward_to(&HookedLoop::hide), py::arg("unit"), Unlocked())
      .def(
          "begin_backward",
          [](const Loop& self, const std::vector<std::map<std::string, double>>& groups,
             std::optional<bool> is_last) { self->begin_backward(values_of(groups), is_last); },
          py::arg("groups"), py::arg("is_last"), Unlocked())
      .def("begin_gradients", forward_to(&HookedLoop::begin_gradients), py::arg("unit"), Unlocked())
      .def("send_gradients", forward_to(&HookedLoop::send_gradients), py::arg("unit"),
           py::arg("awaited"), Unlocked())
      .def("add_loss", forward_to(&HookedLoop::add_loss), py::arg("loss"), Unlocked())
      .def("end_micro_batch", forward_to(&HookedLoop::end_micro_batch), Unlocked())
      .def("forget_gradients", forward_to(&HookedLoop::forget_gradients), Unlocked())
      .def(
          "end_step",
          [](const Loop& self, const std::vector<std::map<std::string, double>>& groups) {
            return self->end_step(values_of(groups));
          },
          py::arg("groups"), Unlocked())
      .def("scheduled_rate", &Loop::scheduled_rate, py::arg("update"))
      .def(
          "scheduled_betas",
          [](const Loop& self, std::int64_t update) -> std::optional<std::pair<double, double>> {
            const auto* cycle = std::get_if<config::OneCycle>(&self->config().scheduler);
            if (cycle == nullptr || !cycle->cycle_momentum) return std::nullopt;
            const config::Betas betas = config::betas_of_step(self->config(), update);
            return std::pair(betas.beta1, betas.beta2);
          },
          py::arg("update"))
      .def("finish", forward_to(&HookedLoop::finish), Unlocked())
      .def("close", &Loop::close, Unlocked())
      .def("parameter", forward_to(&HookedLoop::parameter), py::arg("name"), Unlocked())
      .def("parameters", forward_to(&HookedLoop::parameters), py::arg("names"), Unlocked())
      .def("set_parameters", forward_to(&HookedLoop::set_parameters), py::arg("values"), Unlocked())
      .def("master", forward_to(&HookedLoop::master), py::arg("name"), Unlocked())
      .def("set_master", forward_to(&HookedLoop::set_master), py::arg("name"), py::arg("values"),
           Unlocked())
      .def("moment", forward_to(&HookedLoop::moment), py::arg("name"), py::arg("index"), Unlocked())
      .def("set_moment", forward_to(&HookedLoop::set_moment), py::arg("name"), py::arg("index"),
           py::arg("values"), Unlocked())
      .def(
          "gradient",
          [](const Loop& self, const std::string& name) -> std::optional<torch::Tensor> {
            torch::Tensor gradient = self->gradient(name);
            if (!gradient.defined()) return std::nullopt;
            return gradient;
          },
          py::arg("name"), Unlocked())
      .def("set_gradient", forward_to(&HookedLoop::set_gradient), py::arg("name"),
           py::arg("values"), Unlocked())
      .def("save_checkpoint", forward_to(&HookedLoop::save_checkpoint), py::arg("directory"),
           Unlocked())
      .def("load_checkpoint", forward_to(&HookedLoop::load_checkpoint), py::arg("directory"),
           Unlocked())
      .def_property_readonly("loaded_from", forward_to(&HookedLoop::loaded_from))
      .def("load_failed", forward_to(&HookedLoop::load_failed))
      .def("counters", &counters);
  bind_values(loop);
}

}  // namespace sluice::python
