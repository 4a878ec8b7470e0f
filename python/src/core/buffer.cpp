#include "core/buffer.hpp"

#include <cstdint>
#include <string>
#include <utility>

namespace sluice::python {

namespace py = pybind11;

namespace {

std::string type_name(const py::object& object) {
  return py::str(py::type::of(object).attr("__name__"));
}

// Tensors have no buffer protocol. Their methods are called by name, so nothing of PyTorch is
// needed to build this module.
bool is_tensor(const py::object& object) {
  return py::hasattr(object, "data_ptr") && py::hasattr(object, "element_size");
}

}  // namespace

void Buffer::Release::operator()(Py_buffer* view) const {
  PyBuffer_Release(view);
  delete view;
}

Buffer::Buffer(const py::object& object, Access access) : owner_(object) {
  if (is_tensor(object)) {
    take_tensor(object);
  } else if (PyObject_CheckBuffer(object.ptr()) != 0) {
    take_view(object, access);
  } else {
    throw py::type_error(
        "a buffer is a PyTorch tensor, a NumPy array or an object with the buffer protocol, not " +
        type_name(object));
  }
}

void Buffer::take_tensor(const py::object& tensor) {
  const std::string device = py::str(tensor.attr("device"));
  if (device.rfind("cpu", 0) != 0)
    throw py::value_error("the tensor is on " + device +
                          "; a drive moves memory of the host only: use tensor.cpu()");
  if (!tensor.attr("is_contiguous")().cast<bool>())
    throw py::value_error("the tensor is not contiguous; use tensor.contiguous()");
  if (tensor.attr("is_conj")().cast<bool>())
    throw py::value_error(
        "the tensor is the conjugate of its memory, which a drive moves as it is; use "
        "tensor.resolve_conj()");
  if (tensor.attr("is_neg")().cast<bool>())
    throw py::value_error(
        "the tensor is the negative of its memory, which a drive moves as it is; use "
        "tensor.resolve_neg()");
  storage_ = tensor.attr("untyped_storage")();
  const auto address = tensor.attr("data_ptr")().cast<std::uintptr_t>();
  const auto count = tensor.attr("numel")().cast<std::size_t>();
  const auto element_bytes = tensor.attr("element_size")().cast<std::size_t>();
  // The address of memory that the tensor owns, as Python has it.
  auto* const memory = reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
  bytes_ = {memory, count * element_bytes};
}

void Buffer::take_view(const py::object& object, Access access) {
  auto view = std::make_unique<Py_buffer>();
  const int flags = access == Access::write ? PyBUF_WRITABLE : PyBUF_SIMPLE;
  if (PyObject_GetBuffer(object.ptr(), view.get(), flags) != 0) throw py::error_already_set();
  view_.reset(view.release());
  bytes_ = {static_cast<std::byte*>(view_->buf), static_cast<std::size_t>(view_->len)};
}

}  // namespace sluice::python
