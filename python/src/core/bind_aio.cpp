#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "core/aio_handle.hpp"
#include "core/bindings.hpp"
#include "core/locked_memory.hpp"

namespace sluice::python {

namespace py = pybind11;

namespace {

AioRequest request_of(bool write, std::string path, std::uint64_t offset_bytes, bool validate) {
  using Direction = AioRequest::Direction;
  return {write ? Direction::write : Direction::read, std::move(path), offset_bytes, validate};
}

void bind_locked_memory(py::module_& module) {
  py::class_<LockedMemory>(module, "LockedMemory", py::buffer_protocol(),
                           "Page-locked host memory, zeroed; its bytes by the buffer protocol.")
      .def(py::init<std::size_t>(), py::arg("size_bytes"))
      .def_buffer([](LockedMemory& memory) {
        const auto bytes = static_cast<py::ssize_t>(memory.bytes().size());
        return py::buffer_info(memory.bytes().data(), 1, "B", 1, {bytes}, {1});
      });
}

}  // namespace

void bind_aio(py::module_& module) {
  bind_locked_memory(module);
  py::class_<AioHandle>(module, "AioHandle", "Transfers between memory and files, by one queue.")
      .def(py::init([](std::uint32_t block_bytes, unsigned depth, unsigned threads) {
             return std::make_unique<AioHandle>(AioOptions{block_bytes, depth, threads});
           }),
           py::arg("block_bytes"), py::arg("depth"), py::arg("threads"))
      .def(
          "begin",
          [](AioHandle& handle, bool write, const py::object& buffer, std::string path,
             std::uint64_t offset_bytes, bool validate) {
            handle.begin(request_of(write, std::move(path), offset_bytes, validate), buffer);
          },
          py::arg("write"), py::arg("buffer"), py::arg("path"), py::arg("offset_bytes"),
          py::arg("validate"), "Starts a transfer, which wait() finishes.")
      .def(
          "transfer",
          [](AioHandle& handle, bool write, const py::object& buffer, std::string path,
             std::uint64_t offset_bytes, bool validate) {
            handle.transfer(request_of(write, std::move(path), offset_bytes, validate), buffer);
          },
          py::arg("write"), py::arg("buffer"), py::arg("path"), py::arg("offset_bytes"),
          py::arg("validate"), "Starts a transfer and waits for it.")
      .def("wait", &AioHandle::wait, "Finishes the transfers of begin(); returns their number.")
      .def("backend_name", &AioHandle::backend_name)
      .def("why_not_better", &AioHandle::why_not_better)
      .def("keep_memory", &AioHandle::keep_memory, py::arg("memory"),
           "Registers memory until free_memory(), and keeps its object.")
      .def("free_memory", &AioHandle::free_memory, py::arg("address"),
           "Lets go of kept memory; False when there is none at the address.");
}

}  // namespace sluice::python
