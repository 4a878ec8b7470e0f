#include "engine/python_communicator.hpp"

#include <torch/csrc/utils/pybind.h>
#include <torch/torch.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/base/mutex.hpp"

namespace sluice::python {

namespace py = pybind11;

namespace {

torch::Tensor tensor_over(void* bytes, std::size_t size_bytes, torch::Dtype dtype) {
  const auto count = static_cast<std::int64_t>(size_bytes / c10::elementSize(dtype));
  return torch::from_blob(bytes, {count}, torch::TensorOptions().dtype(dtype));
}

torch::Dtype dtype_of(zero::Element element) {
  switch (element) {
    case zero::Element::fp64:
      return torch::kFloat64;
    case zero::Element::fp32:
      return torch::kFloat32;
    case zero::Element::bf16:
      return torch::kBFloat16;
    case zero::Element::fp16:
      return torch::kFloat16;
    case zero::Element::bytes:
      break;
  }
  return torch::kUInt8;
}

class PythonCommunicator final : public zero::Communicator {
 public:
  using zero::Communicator::begin;

  explicit PythonCommunicator(py::object group)
      : group_(std::move(group)),
        rank_(group_.attr("rank").cast<int>()),
        world_size_(group_.attr("world_size").cast<int>()) {}
  ~PythonCommunicator() override {
    const py::gil_scoped_acquire acquire;
    group_ = py::object();
  }
  PythonCommunicator(const PythonCommunicator&) = delete;
  PythonCommunicator& operator=(const PythonCommunicator&) = delete;

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }

  // Runs the call before it returns: torch.distributed is called with the GIL, by this thread.
  Ticket begin(const zero::HostCall& call) override {
    return Ticket::ended(error_of([&] { run(call); }));
  }
  // torch.distributed ends no call that waits; this rank makes no more.
  void abort(const zero::AbortReason& why) override {
    MutexLock lock(mutex_);
    aborted_ = why.text;
  }
  zero::CommunicatorCounters counters() const override { return counters_.counters(); }
  void observe(zero::CallObserver observer) override { counters_.observe(std::move(observer)); }

 private:
  void run(const zero::HostCall& call) {
    {
      MutexLock lock(mutex_);
      if (!aborted_.empty())
        throw Error("rank " + std::to_string(rank_) + " has aborted: " + aborted_);
    }
    const auto begin = std::chrono::steady_clock::now();
    forward(call);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    count(call, elapsed.count());
  }

  // As ranks.py moves them: whole values in an all_reduce, else shards between all pairs.
  void count(const zero::HostCall& call, double seconds) {
    const std::uint64_t size_bytes = call.output.size();
    const auto others = static_cast<std::uint64_t>(world_size_ - 1);
    const bool is_whole = call.operation == zero::Operation::all_reduce;
    zero::CallCounts one{call.operation, size_bytes, 1, 0, 0, seconds};
    one.sent_bytes = others * (is_whole ? size_bytes : size_bytes / (others + 1));
    one.received_bytes = one.sent_bytes;
    if (call.operation == zero::Operation::broadcast) {
      one.sent_bytes = call.root == rank_ ? others * size_bytes : 0;
      one.received_bytes = call.root == rank_ ? 0 : size_bytes;
    }
    counters_.add(one, call.label);
  }

  void forward(const zero::HostCall& call) {
    const std::span<std::byte> memory = call.output;
    const std::string name(zero::name_of(call.operation));
    switch (call.operation) {
      case zero::Operation::all_gather:
        return forward(call, tensor_over(memory.data(), memory.size(), torch::kUInt8));
      case zero::Operation::reduce_scatter:
      case zero::Operation::all_reduce:
        return forward(call, tensor_over(memory.data(), memory.size(), dtype_of(call.element)));
      case zero::Operation::broadcast:
        return forward(call, tensor_over(memory.data(), memory.size(), torch::kUInt8), call.root);
      case zero::Operation::barrier:
        return forward(call);
      default:
        throw InvalidArgument(name + ": the ranks of torch.distributed make no such call here");
    }
  }

  template <typename... Arguments>
  void forward(const zero::HostCall& call, const Arguments&... arguments) {
    const py::gil_scoped_acquire acquire;
    std::string failed;
    try {
      group_.attr("label") = call.label;
      group_.attr(std::string(zero::name_of(call.operation)).c_str())(arguments...);
      return;
    } catch (const py::error_already_set& error) {
      failed = error.what();
    }
    throw Error(zero::text_of(call, call.input.size(), call.output.size()) +
                " over the ranks has failed on rank " + std::to_string(rank_) + ": " + failed);
  }

  py::object group_;
  const int rank_;
  const int world_size_;
  zero::CallCounters counters_;
  Mutex mutex_;
  std::string aborted_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<zero::Communicator> make_python_communicator(py::object group) {
  return std::make_unique<PythonCommunicator>(std::move(group));
}

}  // namespace sluice::python
