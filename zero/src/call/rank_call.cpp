#include "sluice/zero/rank_call.hpp"

#include <algorithm>

#include "sluice/base/error.hpp"

namespace sluice::zero {

namespace {

bool has_root(Operation operation) {
  return operation == Operation::broadcast || operation == Operation::reduce ||
         operation == Operation::scatter || operation == Operation::gather;
}

bool takes_sums(Operation operation) {
  return operation == Operation::reduce_scatter || operation == Operation::all_reduce ||
         operation == Operation::reduce;
}

std::string count_of(std::size_t size_bytes) {
  return std::to_string(size_bytes) + " bytes";
}

// The mistake in the whole and the shard of a scatter or gather, seen from `rank`.
std::string find_shard_mistake(const RankCall& call, std::size_t whole_bytes,
                               std::size_t shard_bytes, int rank, int world_size) {
  const std::size_t needed =
      rank == call.root ? shard_bytes * static_cast<std::size_t>(world_size) : 0;
  if (whole_bytes == needed || (rank != call.root && whole_bytes == 0)) return "";
  return "rank " + std::to_string(rank) + " brought a whole of " + count_of(whole_bytes) +
         ", needed are " + count_of(needed);
}

std::string find_root_mistake(const RankCall& call, int rank, int world_size) {
  const bool pairwise = is_pairwise(call.operation);
  if (!pairwise && !has_root(call.operation)) return "";
  const char* role = call.operation == Operation::send ? " to rank " : " from rank ";
  if (call.root < 0 || call.root >= world_size) {
    return std::string(name_of(call.operation)) + (pairwise ? role : " with root ") +
           std::to_string(call.root) + " of " + std::to_string(world_size) + " ranks";
  }
  if (pairwise && call.root == rank) {
    return std::string(name_of(call.operation)) + role + std::to_string(call.root) +
           ", which is the rank itself";
  }
  return "";
}

}  // namespace

std::string_view name_of(Operation operation) {
  switch (operation) {
    case Operation::all_gather:
      return "all_gather";
    case Operation::reduce_scatter:
      return "reduce_scatter";
    case Operation::all_reduce:
      return "all_reduce";
    case Operation::broadcast:
      return "broadcast";
    case Operation::reduce:
      return "reduce";
    case Operation::scatter:
      return "scatter";
    case Operation::gather:
      return "gather";
    case Operation::send:
      return "send";
    case Operation::receive:
      return "receive";
    case Operation::barrier:
      return "barrier";
  }
  return "?";
}

Operation parse_operation(std::string_view name) {
  constexpr Operation kOperations[] = {
      Operation::all_gather, Operation::reduce_scatter, Operation::all_reduce, Operation::broadcast,
      Operation::reduce,     Operation::scatter,        Operation::gather,     Operation::send,
      Operation::receive,    Operation::barrier};
  for (const Operation operation : kOperations) {
    if (name_of(operation) == name) return operation;
  }
  throw InvalidArgument("no operation over ranks is named \"" + std::string(name) + "\"");
}

std::string_view name_of(Element element) {
  switch (element) {
    case Element::bytes:
      return "bytes";
    case Element::fp32:
      return "fp32";
    case Element::bf16:
      return "bf16";
    case Element::fp16:
      return "fp16";
    case Element::fp64:
      return "fp64";
  }
  return "?";
}

std::size_t size_of(Element element) {
  switch (element) {
    case Element::bytes:
      return 1;
    case Element::fp32:
      return 4;
    case Element::bf16:
    case Element::fp16:
      return 2;
    case Element::fp64:
      return 8;
  }
  return 1;
}

Element element_of(DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return Element::fp32;
    case DType::bf16:
      return Element::bf16;
    case DType::fp16:
      return Element::fp16;
  }
  return Element::bytes;
}

std::string text_of(const RankCall& call, std::size_t input_bytes, std::size_t output_bytes) {
  std::string text(name_of(call.operation));
  if (!call.label.empty()) text += " of " + call.label;
  if (call.operation == Operation::barrier) return text;
  text += ", " + count_of(std::max(input_bytes, output_bytes));
  if (call.element != Element::bytes) text += " of " + std::string(name_of(call.element));
  if (call.operation == Operation::send) text += " to rank " + std::to_string(call.root);
  if (call.operation == Operation::receive) text += " from rank " + std::to_string(call.root);
  if (has_root(call.operation)) text += ", root " + std::to_string(call.root);
  return text;
}

std::string find_mistake(const RankCall& call, std::size_t input_bytes, std::size_t output_bytes,
                         int rank, int world_size) {
  if (std::string mistake = find_root_mistake(call, rank, world_size); !mistake.empty())
    return mistake;
  if (takes_sums(call.operation) && call.element == Element::bytes)
    return std::string(name_of(call.operation)) + " of " + count_of(output_bytes) +
           ": bytes have no sum";
  const std::size_t element_bytes = size_of(call.element);
  switch (call.operation) {
    case Operation::scatter:
      return find_shard_mistake(call, input_bytes, output_bytes, rank, world_size);
    case Operation::gather:
      return find_shard_mistake(call, output_bytes, input_bytes, rank, world_size);
    case Operation::all_gather:
    case Operation::reduce_scatter:
      if (output_bytes % (static_cast<std::size_t>(world_size) * element_bytes) == 0) return "";
      return std::string(name_of(call.operation)) + " of " + count_of(output_bytes) +
             ": not divisible into " + std::to_string(world_size) + " shards of elements of " +
             count_of(element_bytes);
    default:
      if (!takes_sums(call.operation) || output_bytes % element_bytes == 0) return "";
      return std::string(name_of(call.operation)) + " of " + count_of(output_bytes) +
             ": no whole number of elements of " + count_of(element_bytes);
  }
}

}  // namespace sluice::zero
