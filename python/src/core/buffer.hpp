#pragma once
// Host memory that a Python object owns: a PyTorch tensor on the CPU, a NumPy array, or anything
// with the buffer protocol. The object and its memory stay alive as long as the Buffer. Until then
// an object with the buffer protocol cannot be resized.
// Made and destroyed with the GIL; bytes() needs none. Thread-compatible: callers synchronise.

#include <pybind11/pybind11.h>

#include <cstddef>
#include <memory>
#include <span>

namespace sluice::python {

// How the memory will be used.
enum class Access { read, write };

class Buffer {
 public:
  // Throws a Python exception: TypeError for an object without memory of its own, ValueError for
  // memory that is not contiguous or not on the host and for a conjugated or negated view of a
  // tensor, BufferError for Access::write on read-only memory.
  Buffer(const pybind11::object& object, Access access);

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  struct Release {
    void operator()(Py_buffer* view) const;
  };
  void take_tensor(const pybind11::object& tensor);
  void take_view(const pybind11::object& object, Access access);

  pybind11::object owner_;
  pybind11::object storage_;  // of a tensor, which may take another one through .data; or null
  std::unique_ptr<Py_buffer, Release> view_;  // null for a tensor
  std::span<std::byte> bytes_;
};

}  // namespace sluice::python
