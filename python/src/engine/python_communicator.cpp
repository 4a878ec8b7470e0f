#include "engine/python_communicator.hpp"

#include <torch/csrc/utils/pybind.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/models/torch_dtype.hpp"

namespace sluice::python {

namespace py = pybind11;

namespace {

torch::Tensor tensor_over(void* bytes, std::size_t size_bytes, torch::Dtype dtype) {
  const auto count = static_cast<std::int64_t>(size_bytes / c10::elementSize(dtype));
  return torch::from_blob(bytes, {count}, torch::TensorOptions().dtype(dtype));
}

class PythonCommunicator final : public zero::Communicator {
 public:
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

  void all_gather(std::span<std::byte> full) override {
    call("all_gather", tensor_over(full.data(), full.size(), torch::kUInt8));
  }
  void reduce_scatter(std::span<std::byte> full, DType dtype) override {
    call("reduce_scatter", tensor_over(full.data(), full.size(), models::torch_dtype(dtype)));
  }
  void all_reduce(std::span<double> values) override {
    call("all_reduce", tensor_over(values.data(), values.size_bytes(), torch::kFloat64));
  }
  void broadcast(std::span<std::byte> bytes, int root) override {
    call("broadcast", tensor_over(bytes.data(), bytes.size(), torch::kUInt8), root);
  }
  void barrier() override { call("barrier"); }

 private:
  template <typename... Arguments>
  void call(const char* name, const Arguments&... arguments) {
    const py::gil_scoped_acquire acquire;
    std::string failed;
    try {
      group_.attr(name)(arguments...);
      return;
    } catch (const py::error_already_set& error) {
      failed = error.what();
    }
    throw Error(std::string(name) + " over the ranks has failed on rank " + std::to_string(rank_) +
                ": " + failed);
  }

  py::object group_;
  const int rank_;
  const int world_size_;
};

}  // namespace

std::unique_ptr<zero::Communicator> make_python_communicator(py::object group) {
  return std::make_unique<PythonCommunicator>(std::move(group));
}

}  // namespace sluice::python
