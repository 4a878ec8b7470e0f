#pragma once
// LateGpu: a LateDevice on which LibTorch computes. Every operation of LibTorch tells the device
// which memory it reads and writes, before it runs. A test makes one, runs steps on run_device(),
// and expects no violations().

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device/run_device.hpp"
#include "offload/device/late_device.hpp"
#include "stand_in_gpu.hpp"

namespace sluice::train::test {

// One at a time in a process, because LibTorch has one list of observers. Operations of LibTorch
// run on the thread that trains.
class LateGpu {
 public:
  explicit LateGpu(const offload::test::LateOptions& options)
      : device_(std::make_shared<offload::test::LateDevice>(options)) {
    observed() = device_.get();
    observer_ = at::addGlobalCallback(at::RecordFunctionCallback(&LateGpu::begin, &LateGpu::end)
                                          .needsInputs(true)
                                          .needsOutputs(true)
                                          .scopes({at::RecordScope::FUNCTION}));
  }
  ~LateGpu() {
    at::removeCallback(observer_);
    observed() = nullptr;
  }
  LateGpu(const LateGpu&) = delete;
  LateGpu& operator=(const LateGpu&) = delete;

  RunDevice run_device() const { return make_stand_in_gpu(device_); }
  std::vector<std::string> violations() const { return device_->violations(); }

 private:
  using Uses = offload::test::MemoryUses;

  // How an operation uses memory, by its schema.
  struct Operation {
    // only_views: uses no bytes of its arguments.
    enum class Kind { computes, only_views, reads_result } kind = Kind::computes;
    bool new_result_is_written = true;  // false: the operation only allocates it
    std::vector<bool> writes;           // by argument
  };

  static std::atomic<offload::test::LateDevice*>& observed() {
    static std::atomic<offload::test::LateDevice*> device{nullptr};
    return device;
  }

  static bool has_tensor(const std::vector<c10::Argument>& results) {
    return std::any_of(results.begin(), results.end(), [](const c10::Argument& result) {
      return result.type()->str().find("Tensor") != std::string::npos;
    });
  }
  static Operation describe(const c10::FunctionSchema& schema) {
    Operation operation;
    const std::string& name = schema.name();
    for (const c10::Argument& argument : schema.arguments())
      operation.writes.push_back(argument.alias_info() != nullptr &&
                                 argument.alias_info()->isWrite());
    bool views = schema.returns().empty() || !has_tensor(schema.returns());
    for (const c10::Argument& result : schema.returns())
      views = views || (result.alias_info() != nullptr && !result.alias_info()->isWrite());
    const bool writes =
        std::find(operation.writes.begin(), operation.writes.end(), true) != operation.writes.end();
    if (views && !writes) operation.kind = Operation::Kind::only_views;
    // A GPU's host waits for all work when it reads a value.
    if (name == "aten::_local_scalar_dense" || name == "aten::equal" || name == "aten::is_nonzero")
      operation.kind = Operation::Kind::reads_result;
    if (name == "aten::set_" || name == "aten::resize_")
      operation.kind = Operation::Kind::only_views;
    operation.new_result_is_written =
        name.rfind("aten::empty", 0) != 0 && name.rfind("aten::new_empty", 0) != 0;
    return operation;
  }
  static const Operation* operation_of(const at::RecordFunction& function) {
    thread_local std::unordered_map<std::string, Operation> known;
    const std::optional<c10::OperatorName> name = function.operator_name();
    if (!name) return nullptr;
    std::string key = name->name + "." + name->overload_name;
    const auto found = known.find(key);
    if (found != known.end()) return &found->second;
    const auto schema = function.operator_schema();
    if (!schema) return nullptr;
    return &known.emplace(std::move(key), describe(*schema)).first->second;
  }

  static void add(Uses& uses, const at::Tensor& tensor, bool writes) {
    if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) return;
    const void* data = tensor.const_data_ptr();
    if (data == nullptr) return;
    std::int64_t last = 0;  // element
    for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
    uses.push_back({data, static_cast<std::size_t>(last + 1) * tensor.itemsize(), writes});
  }
  static void add(Uses& uses, const c10::IValue& value, bool writes) {
    if (value.isTensor()) {
      add(uses, value.toTensor(), writes);
    } else if (value.isList()) {
      for (const c10::IValue& each : value.toListRef()) add(uses, each, writes);
    }
  }

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    offload::test::LateDevice* device = observed();
    const Operation* operation = operation_of(function);
    if (device == nullptr || operation == nullptr) return nullptr;
    if (operation->kind == Operation::Kind::only_views) return nullptr;
    Uses uses;
    const auto inputs = function.inputs();
    for (std::size_t i = 0; i < inputs.size() && i < operation->writes.size(); ++i)
      add(uses, inputs[i], operation->writes[i]);
    if (!uses.empty()) device->issue(function.name(), std::move(uses));
    if (operation->kind == Operation::Kind::reads_result) device->synchronize();
    return nullptr;
  }
  // New results are known only now; nobody else knows their memory before.
  static void end(const at::RecordFunction& function, at::ObserverContext*) {
    offload::test::LateDevice* device = observed();
    const Operation* operation = operation_of(function);
    if (device == nullptr || operation == nullptr) return;
    if (operation->kind != Operation::Kind::computes || !operation->new_result_is_written) return;
    Uses uses;
    for (const c10::IValue& result : function.outputs()) add(uses, result, true);
    if (!uses.empty()) device->issue(function.name(), std::move(uses));
  }

  const std::shared_ptr<offload::test::LateDevice> device_;  // shared with the run's tensors
  at::CallbackHandle observer_ = 0;
};

}  // namespace sluice::train::test
