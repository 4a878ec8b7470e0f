// Uses the installed components as a program of its own would: writes optimizer state to a file,
// reads it back, steps.

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <span>
#include <vector>

#include "sluice/cpu_adam/optimizer.hpp"
#include "sluice/nvme/io_engine.hpp"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  constexpr std::size_t kCount = 5000;
  std::vector<float> master(kCount, 1.0F);
  {
    namespace nvme = sluice::nvme;
    const nvme::SwapFile file(argv[1], nvme::OpenMode::create, nvme::DirectIo::automatic);
    nvme::IoEngine engine(nvme::make_backend(nvme::BackendKind::automatic, 8, 2).backend,
                          nvme::IoEngineOptions{});
    engine.begin_write(file, 0, std::as_bytes(std::span<const float>(master))).finish();
    std::vector<float> read(kCount, 0.0F);
    engine.begin_read(file, 0, std::as_writable_bytes(std::span<float>(read))).finish();
    if (read != master) return 1;
    master = read;
  }
  std::vector<float> moment1(kCount, 0.0F);
  std::vector<float> moment2(kCount, 0.0F);
  const std::vector<float> gradient(kCount, 0.5F);
  sluice::cpu_adam::AdamConfig config;
  config.learning_rate = 0.125;
  config.epsilon = 0;
  const sluice::cpu_adam::Tile tile{
      .master = std::span<float>(master),
      .moments = {std::span<float>(moment1), std::span<float>(moment2)},
      .gradient = std::span<const float>(gradient)};
  const auto executor = sluice::make_executor(2);
  sluice::cpu_adam::step(config, {}, tile, *executor);
  // The first step moves every parameter by the learning rate (Kingma & Ba 2015, section 2.1).
  for (const float value : master) {
    if (std::abs(value - 0.875F) > 1e-6F) return 1;
  }
  std::puts("a step on bytes that were on disk: ok");
  return 0;
}
