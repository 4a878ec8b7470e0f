// The sum of many small gradients, in fp32 and in bf16: 1,024 micro-batches whose gradient is 2^-12
// in every element.

#include <gtest/gtest.h>

#include <cmath>
#include <iostream>

#include "sluice/config/train_config.hpp"
#include "sluice/train/engine.hpp"
#include "temp_dir.hpp"

namespace sluice::test {
namespace {

using torch::Tensor;
using train::Engine;
using train::EngineOptions;
using train::StepResult;

constexpr int kMicroBatches = 1024;
constexpr std::int64_t kWidth = 64;

// The weight's gradient is the input.
struct ProductImpl : torch::nn::Module {
  ProductImpl() : w(register_parameter("w", torch::ones({kWidth, kWidth}))) {}
  Tensor forward(const Tensor& x) { return x * w; }
  Tensor w;
};

struct Placed {
  const char* optimizer;
  const char* param;
  bool resident;
};

config::TrainConfig config_of(const std::string& sums, const Placed& placed,
                              const std::string& swap) {
  const auto offload = [&](const std::string& device) {
    return "{\"device\": \"" + device + "\"" +
           (device == "nvme" ? ", \"nvme_path\": \"" + swap + "\"}" : "}");
  };
  const std::string text =
      R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": )" +
      std::to_string(kMicroBatches) +
      R"(, "optimizer": {"type": "SGD", "params": {"lr": 1}}, "gradient_clipping": 0,
          "bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": ")" +
      sums + R"("}, "zero_optimization": {"stage": 3, "offload_optimizer": )" +
      offload(placed.optimizer) + R"(, "offload_param": )" + offload(placed.param) +
      R"(}, "sluice": {"device_bytes": "16MiB", "host_bytes": "32MiB", "threads": {"compute": 1}}})";
  return config::parse_train_config(text, "ds.json");
}

// A step; the weights after it, all equal.
struct Summed {
  double norm;
  float weight;
};
Summed step_of(const std::string& sums, const Placed& placed) {
  const TempDir swap;
  EngineOptions options;
  options.resident = placed.resident;
  Engine engine(config_of(sums, placed, swap.path()), options);
  const auto product = std::make_shared<ProductImpl>();
  const train::Unit unit = engine.add_unit("product", product);
  engine.initialize();
  // The engine scales the loss by 2^-10, one over the number of micro-batches.
  const Tensor x = torch::full({kWidth, kWidth}, 0x1p-2, torch::kBFloat16);
  StepResult result;
  for (int m = 0; m < kMicroBatches; ++m) {
    engine.backward(engine.forward(unit, x).sum());
    result = engine.step();
  }
  const Tensor w = engine.parameter("product.w").to(torch::kFloat32);
  EXPECT_TRUE(w.eq(w[0][0]).all().item<bool>());
  return {result.gradient_norm, w[0][0].item<float>()};
}

TEST(GradientSums, Of1024SmallGradientsAreExactInFp32InEveryPlacement) {
  for (const Placed& placed : {Placed{"none", "none", true}, Placed{"none", "none", false},
                               Placed{"cpu", "cpu", false}, Placed{"nvme", "nvme", false}}) {
    const Summed sum = step_of("fp32", placed);
    EXPECT_EQ(sum.norm, kWidth * 0x1p-2) << placed.optimizer;
    EXPECT_EQ(sum.weight, 1 - 0x1p-2F) << placed.optimizer;
  }
}

// A sum in bf16 has 8 bits: 2^-12 more no longer counts once it is 2^-4.
TEST(GradientSums, Of1024SmallGradientsStopGrowingInBf16) {
  const Summed sum = step_of("bf16", {"cpu", "cpu", false});
  EXPECT_EQ(sum.norm, kWidth * 0x1p-4);
  EXPECT_EQ(sum.weight, 1 - 0x1p-4F);
  std::cout << "1024 gradients of 2^-12 sum to " << sum.norm / kWidth << " in bf16, "
            << step_of("fp32", {"cpu", "cpu", false}).norm / kWidth << " in fp32\n";
}

}  // namespace
}  // namespace sluice::test
