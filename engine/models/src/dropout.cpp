#include "sluice/models/dropout.hpp"

#include <ATen/Context.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cassert>
#include <cmath>

#include "saved_stream.hpp"
#include "sluice/base/error.hpp"

namespace sluice::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Elements per unit of work: a multiple of the four numbers of a block.
constexpr std::int64_t kGrain = 16LL * 1024;

class Dropout : public torch::autograd::Function<Dropout> {
 public:
  static torch::Tensor forward(AutogradContext* ctx, const torch::Tensor& x, double p,
                               const PhiloxStream& stream) {
    ctx->saved_data["p"] = p;
    save_stream(*ctx, stream);
    return dropped(x, p, stream);
  }

  // Draws the forward's mask again, so no mask is saved.
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    return {dropped(gradients[0], ctx->saved_data["p"].toDouble(), saved_stream(*ctx)), {}, {}};
  }

 private:
  static torch::Tensor dropped(const torch::Tensor& x, double p, const PhiloxStream& stream) {
    torch::Tensor y = x.clone(torch::MemoryFormat::Contiguous);
    drop_in_place(y, p, stream, 0);
    return y;
  }
};

// Drops element i where number first_index + i of the stream is below `threshold`.
struct Mask {
  const PhiloxStream& stream;
  std::uint64_t first_index;
  std::uint32_t threshold;
};

template <typename Scalar>
void drop_range(Scalar* x, std::int64_t begin, std::int64_t end, at::opmath_type<Scalar> scale,
                const Mask& mask) {
  std::int64_t i = begin;
  while (i < end) {
    const std::uint64_t index = mask.first_index + static_cast<std::uint64_t>(i);
    const PhiloxBlock numbers = mask.stream.block(index / 4);
    for (std::size_t lane = index % 4; lane < 4 && i < end; ++lane, ++i) {
      const auto value = static_cast<at::opmath_type<Scalar>>(x[i]);
      x[i] = numbers[lane] < mask.threshold ? Scalar(0) : static_cast<Scalar>(value * scale);
    }
  }
}

// A seed that depends on everything a mask depends on.
std::uint64_t seed_of(const PhiloxStream& stream, std::uint64_t first_index) {
  const PhiloxBlock words = stream.block(first_index / 4);
  return (std::uint64_t{words[0]} << 32U) | words[1];
}

void drop_on_device(torch::Tensor& x, double p, const at::Generator& generator) {
  const torch::Tensor dropped = torch::empty_like(x, torch::kBool).bernoulli_(p, generator);
  x.mul_(1.0 / (1.0 - p)).masked_fill_(dropped, 0);
}

}  // namespace

PhiloxStream dropout_stream(const DropoutKey& key, std::int64_t unit, std::int64_t site) {
  // There are few sites, so unit and site share a word.
  const auto place = (static_cast<std::uint64_t>(unit) << 8U) | static_cast<std::uint64_t>(site);
  return philox_stream(PhiloxDomain::dropout, key.seed,
                       {static_cast<std::uint64_t>(key.step), place,
                        static_cast<std::uint64_t>(key.micro_batch), 0});
}

at::Generator seeded_generator(const torch::Device& device, const PhiloxStream& stream,
                               std::uint64_t first_index) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  generator.set_current_seed(seed_of(stream, first_index));
  return generator;
}

void drop_in_place(torch::Tensor& x, double p, const PhiloxStream& stream,
                   std::uint64_t first_index) {
  assert(x.is_contiguous());
  if (!x.is_cpu()) {
    drop_on_device(x, p, seeded_generator(x.device(), stream, first_index));
    return;
  }
  const Mask mask{stream, first_index, static_cast<std::uint32_t>(std::llround(p * 0x1p32 - 0.5))};
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "dropout", [&] {
    auto* data = x.mutable_data_ptr<scalar_t>();
    const auto scale = static_cast<at::opmath_type<scalar_t>>(1.0 / (1.0 - p));
    at::parallel_for(0, x.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      drop_range(data, begin, end, scale, mask);
    });
  });
}

torch::Tensor dropout(const torch::Tensor& x, double p, const DropoutKey& key, std::int64_t unit,
                      std::int64_t site) {
  SLUICE_CHECK(p >= 0 && p < 1, "a dropout probability of " + std::to_string(p));
  if (!key.training || p == 0) return x;
  return Dropout::apply(x, p, dropout_stream(key, unit, site));
}

}  // namespace sluice::models
