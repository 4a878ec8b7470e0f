#pragma once
// Communicator over an object of Python, which calls torch.distributed (sluice/_training/ranks.py).
// Each call takes the GIL; callers wait without it.

#include <pybind11/pybind11.h>

#include <memory>

#include "sluice/zero/communicator.hpp"

namespace sluice::python {

// `group`: has rank, world_size, all_gather, reduce_scatter, all_reduce, broadcast and barrier.
// Called with the GIL. An exception of the object becomes an Error of the call.
std::unique_ptr<zero::Communicator> make_python_communicator(pybind11::object group);

}  // namespace sluice::python
