#pragma once
// RankCall: one operation over ranks as a value: what is done, on which memory, for what purpose.
// Communicator has named functions for those that sharding needs.
//
// Values that own no memory. Thread-compatible.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "sluice/base/dtype.hpp"
#include "sluice/offload/device.hpp"
#include "sluice/offload/device_span.hpp"

namespace sluice::zero {

enum class Operation {
  all_gather,
  reduce_scatter,
  all_reduce,
  broadcast,
  reduce,
  scatter,
  gather,
  send,
  receive,
  barrier,
};
std::string_view name_of(Operation operation);
// The operation with this name. Throws InvalidArgument.
Operation parse_operation(std::string_view name);
// send and receive: between two ranks, and no part of the other ranks' order.
constexpr bool is_pairwise(Operation operation) {
  return operation == Operation::send || operation == Operation::receive;
}

// The contents of a call's memory. Only calls that take sums distinguish elements.
enum class Element { bytes, fp32, bf16, fp16, fp64 };
std::string_view name_of(Element element);
std::size_t size_of(Element element);
Element element_of(DType dtype);

struct RankCall {
  Operation operation = Operation::barrier;
  Element element = Element::bytes;
  // The rank that has or gets the whole, of broadcast, reduce, scatter, gather; the other rank of
  // send and receive.
  int root = 0;
  // Unit and purpose, equal on all ranks that take part. Ranks compare it, and errors show it.
  std::string label;
};

// A call on host memory. all_gather, reduce_scatter, all_reduce, broadcast and reduce work in
// place, in `output`. receive writes `output`; send reads `input`. scatter: `input` of the root has
// all shards, `output` gets one. gather: `input` is one shard, `output` of the root gets all.
struct HostCall : RankCall {
  std::span<const std::byte> input;
  std::span<std::byte> output;
};

// A call on memory of a device. It begins after `after`.
struct DeviceCall : RankCall {
  offload::DeviceSpan input;
  offload::DeviceSpan output;
  offload::ComputePoint after;
};

// "all_gather of unit h.3, 4096 bytes"; for errors. `input_bytes`, `output_bytes`: of the call.
std::string text_of(const RankCall& call, std::size_t input_bytes, std::size_t output_bytes);
// Why `rank` of `world_size` ranks cannot make this call, whatever the others do; empty: it can.
std::string find_mistake(const RankCall& call, std::size_t input_bytes, std::size_t output_bytes,
                         int rank, int world_size);

}  // namespace sluice::zero
