#include "sluice/zero/communicator.hpp"

#include <utility>

#include "sluice/base/error.hpp"

namespace sluice::zero {

namespace {

RankCall call_of(Operation operation, Element element, int root, std::string label) {
  return {operation, element, root, std::move(label)};
}

HostCall host_call(RankCall call, std::span<std::byte> output) {
  return {std::move(call), {}, output};
}

HostCall all_gather_of(std::span<std::byte> full, std::string label) {
  return host_call(call_of(Operation::all_gather, Element::bytes, 0, std::move(label)), full);
}

HostCall reduce_scatter_of(std::span<std::byte> full, DType dtype, std::string label) {
  return host_call(call_of(Operation::reduce_scatter, element_of(dtype), 0, std::move(label)),
                   full);
}

HostCall all_reduce_of(std::span<double> values, std::string label) {
  return host_call(call_of(Operation::all_reduce, Element::fp64, 0, std::move(label)),
                   std::as_writable_bytes(values));
}

HostCall broadcast_of(std::span<std::byte> bytes, int root, std::string label) {
  return host_call(call_of(Operation::broadcast, Element::bytes, root, std::move(label)), bytes);
}

HostCall barrier_of(std::string label) {
  return host_call(call_of(Operation::barrier, Element::bytes, 0, std::move(label)), {});
}

DeviceCall device_call(RankCall call, offload::DeviceSpan output,
                       const offload::ComputePoint& after) {
  return {std::move(call), {}, output, after};
}

}  // namespace

Ticket Communicator::begin(const HostCall& call) {
  throw InvalidArgument("rank " + std::to_string(rank()) + ": " +
                        text_of(call, call.input.size(), call.output.size()) +
                        ": this communicator works on memory of a device");
}

Ticket Communicator::begin(const DeviceCall& call) {
  throw InvalidArgument("rank " + std::to_string(rank()) + ": " +
                        text_of(call, call.input.size_bytes(), call.output.size_bytes()) +
                        ": this communicator works on host memory");
}

Ticket Communicator::begin_all_gather(std::span<std::byte> full, std::string label) {
  return begin(all_gather_of(full, std::move(label)));
}

Ticket Communicator::begin_reduce_scatter(std::span<std::byte> full, DType dtype,
                                          std::string label) {
  return begin(reduce_scatter_of(full, dtype, std::move(label)));
}

Ticket Communicator::begin_barrier(std::string label) {
  return begin(barrier_of(std::move(label)));
}

Ticket Communicator::begin_all_gather(offload::DeviceSpan full, const offload::ComputePoint& after,
                                      std::string label) {
  return begin(device_call(call_of(Operation::all_gather, Element::bytes, 0, std::move(label)),
                           full, after));
}

Ticket Communicator::begin_reduce_scatter(offload::DeviceSpan full, DType dtype,
                                          const offload::ComputePoint& after, std::string label) {
  return begin(device_call(
      call_of(Operation::reduce_scatter, element_of(dtype), 0, std::move(label)), full, after));
}

void Communicator::all_gather(std::span<std::byte> full, std::string label) {
  perform(all_gather_of(full, std::move(label)));
}

void Communicator::reduce_scatter(std::span<std::byte> full, DType dtype, std::string label) {
  perform(reduce_scatter_of(full, dtype, std::move(label)));
}

void Communicator::all_reduce(std::span<double> values, std::string label) {
  perform(all_reduce_of(values, std::move(label)));
}

void Communicator::broadcast(std::span<std::byte> bytes, int root, std::string label) {
  perform(broadcast_of(bytes, root, std::move(label)));
}

void Communicator::barrier(std::string label) {
  perform(barrier_of(std::move(label)));
}

}  // namespace sluice::zero
