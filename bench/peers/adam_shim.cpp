// sluice::cpu_adam for programs in other languages: adam_peer.py measures it in its own process, on
// its own arrays. Every function returns 0, or -1 with a message in sluice_error().

#include <cstdint>
#include <exception>
#include <memory>
#include <string>

#include "sluice/cpu_adam/optimizer.hpp"

namespace {

using namespace sluice;
using namespace sluice::cpu_adam;

std::string& error_text() {
  static std::string text;
  return text;
}

std::unique_ptr<Executor>& executor() {
  static std::unique_ptr<Executor> of_process;
  return of_process;
}

template <class Work>
int guarded(Work work) {
  try {
    work();
    return 0;
  } catch (const std::exception& error) {
    error_text() = error.what();
    return -1;
  }
}

}  // namespace

// Memory and settings of a step; a pointer is null where the layout has no such array. With `low`,
// the master is split and its upper half is `master`.
struct SluiceStep {
  void* master;
  std::uint16_t* low;
  void* moment1;
  void* moment2;
  const void* gradient;
  void* weight;
  std::size_t count;
  int bf16_moments;
  int bf16_gradient;
  double learning_rate;
  double weight_decay;
  float gradient_factor;
};

extern "C" {

const char* sluice_error() {
  return error_text().c_str();
}

const char* sluice_kernel() {
  static std::string name;
  guarded([] { name = kernel_in_use(); });
  return name.c_str();
}

int sluice_threads(int threads) {
  return guarded([&] { executor() = make_executor(threads); });
}

// AdamW; the weight, if any, is bf16.
int sluice_adamw(const SluiceStep* a, std::int64_t step_number) {
  return guarded([&] {
    const std::size_t n = a->count;
    Tile tile;
    if (a->low != nullptr) {
      tile.master = SplitMaster{{static_cast<Bf16*>(a->master), n}, {a->low, n}};
    } else {
      tile.master = std::span(static_cast<float*>(a->master), n);
    }
    void* const moments[] = {a->moment1, a->moment2};
    for (std::size_t k = 0; k < 2; ++k) {
      if (a->bf16_moments != 0) {
        tile.moments[k] = std::span(static_cast<Bf16*>(moments[k]), n);
      } else {
        tile.moments[k] = std::span(static_cast<float*>(moments[k]), n);
      }
    }
    if (a->bf16_gradient != 0) {
      tile.gradient = std::span(static_cast<const Bf16*>(a->gradient), n);
    } else {
      tile.gradient = std::span(static_cast<const float*>(a->gradient), n);
    }
    if (a->weight != nullptr) tile.weight = std::span(static_cast<Bf16*>(a->weight), n);
    step(AdamConfig{.learning_rate = a->learning_rate, .weight_decay = a->weight_decay},
         {.step = step_number, .gradient_factor = a->gradient_factor}, tile, *executor());
  });
}

}  // extern "C"
