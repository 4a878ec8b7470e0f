#include "wire_sum.hpp"

#include <algorithm>
#include <memory>

#include "exchange/element_formats.hpp"

namespace sluice::zero {

namespace {

// Bytes of one rank's part of a piece, on the wire. As the blocks of a sum.
constexpr std::size_t kPieceBytes = std::size_t{1} << 20U;

template <typename From, typename To>
void convert(const std::byte* from, std::byte* to, std::size_t count, float multiplier,
             float divisor) {
  for (std::size_t i = 0; i < count; ++i)
    store_at<To>(to, i, load_at<From>(from, i) * multiplier / divisor);
}

using Conversion = void (*)(const std::byte*, std::byte*, std::size_t, float, float);

template <typename From>
Conversion conversion_to(DType to) {
  switch (to) {
    case DType::fp32:
      return convert<From, Fp32Format>;
    case DType::bf16:
      return convert<From, Bf16Format>;
    case DType::fp16:
      return convert<From, Fp16Format>;
  }
  return nullptr;
}

Conversion conversion_of(DType from, DType to) {
  switch (from) {
    case DType::fp32:
      return conversion_to<Fp32Format>(to);
    case DType::bf16:
      return conversion_to<Bf16Format>(to);
    case DType::fp16:
      return conversion_to<Fp16Format>(to);
  }
  return nullptr;
}

}  // namespace

void convert_elements(Elements<const std::byte> from, Elements<std::byte> to, std::size_t count,
                      const Scaling& scaling, Executor* executor) {
  const Conversion convert = conversion_of(from.dtype, to.dtype);
  for_each_piece(count, executor, [&](std::size_t begin, std::size_t end) {
    convert(from.bytes + begin * size_of(from.dtype), to.bytes + begin * size_of(to.dtype),
            end - begin, static_cast<float>(scaling.multiplier),
            static_cast<float>(scaling.divisor));
  });
}

void sum_over_wire(Communicator& ranks, std::span<std::byte> full, DType dtype,
                   const SumFormat& format, Executor* executor, const std::string& label) {
  const std::size_t element = size_of(dtype);
  const DType wire = format.wire_dtype.value_or(dtype);
  if (wire == dtype) {
    convert_elements({full.data(), dtype}, {full.data(), dtype}, full.size() / element,
                     {.divisor = format.divisor}, executor);
    return ranks.reduce_scatter(full, dtype, label);
  }
  const auto size = static_cast<std::size_t>(ranks.world_size());
  const std::size_t shard_count = full.size() / element / size;
  const std::size_t piece_count = std::min(shard_count, kPieceBytes / size_of(wire));
  const auto piece =
      std::make_unique_for_overwrite<std::byte[]>(size * piece_count * size_of(wire));
  for (std::size_t begin = 0; begin < shard_count; begin += piece_count) {
    const std::size_t count = std::min(piece_count, shard_count - begin);
    const auto in_full = [&](std::size_t rank) {
      return full.data() + (rank * shard_count + begin) * element;
    };
    const auto in_piece = [&](std::size_t rank) {
      return piece.get() + rank * count * size_of(wire);
    };
    for (std::size_t rank = 0; rank < size; ++rank)
      convert_elements({in_full(rank), dtype}, {in_piece(rank), wire}, count,
                       {.divisor = format.divisor}, executor);
    ranks.reduce_scatter({piece.get(), size * count * size_of(wire)}, wire, label);
    const auto own = static_cast<std::size_t>(ranks.rank());
    convert_elements({in_piece(own), wire}, {in_full(own), dtype}, count, {}, executor);
  }
}

}  // namespace sluice::zero
