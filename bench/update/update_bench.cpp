// Measures the updates of a step beside the bare kernel over the same memory: several units of a
// transformer block's size with everything in host memory, updated by the StateUpdater as a step
// does it, and by one call of cpu_adam::step over all of them.
//
//   update_bench FORMAT THREADS LAYERS WIDTH ROUNDS [TILE_ELEMENTS]
//
// FORMAT: fp32, split, bf16 or split_bf16, as in adam_bench. A round is a slice of the updates, of
// the kernel, and of the kernel again; another side begins each round, since on a busy machine the
// place in a round makes a difference. With TILE_ELEMENTS
// the side of the updates is the kernel over one tile after the other, with a barrier behind each.
// Prints a JSON object: GB/s of every slice.

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#if SLUICE_HAVE_TBB
#include <oneapi/tbb/global_control.h>
#endif

#include "slices.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/worker.hpp"
#include "sluice/config/lr_schedule.hpp"
#include "sluice/plan/make_plan.hpp"
#include "step/run_resources.hpp"
#include "update/state_updater.hpp"
#include "update/tile_placement.hpp"

namespace {

using namespace sluice;
using namespace sluice::train;

struct Arguments {
  std::string format;
  int threads = 1;
  std::int64_t layers = 1;
  std::int64_t width = 64;
  int rounds = 1;
  std::uint64_t tile_elements = 0;  // 0: the StateUpdater
};

plan::Plan plan_of(const Arguments& arguments) {
  using Home = config::OffloadConfig::Device;
  const std::string& format = arguments.format;
  SLUICE_CHECK(format == "fp32" || format == "split" || format == "bf16" || format == "split_bf16",
               format + ": expected fp32, split, bf16 or split_bf16");
  config::TrainConfig config;
  config.micro_batch_size = config.gradient_accumulation_steps = config.train_batch_size = 1;
  config.bf16 = true;
  config.gradient_clipping = 1;  // every unit has a home for its gradient
  config.optimizer.lr = 1e-6;
  config.zero.stage = 3;
  config.zero.offload_optimizer.device = config.zero.offload_param.device = Home::cpu;
  config.sluice.device_bytes = {config::ByteBudget::Kind::bytes, std::uint64_t{4} << 30U};
  config.sluice.host_bytes = {config::ByteBudget::Kind::bytes, std::uint64_t{1} << 40U};
  config.sluice.threads.optimizer = arguments.threads;
  config.sluice.master =
      format.starts_with("split") ? config::MasterFormat::split : config::MasterFormat::fp32;
  config.sluice.moments =
      format.ends_with("bf16") ? config::MomentFormat::bf16 : config::MomentFormat::fp32;
  config::ModelConfig model;
  model.n_layer = arguments.layers;
  model.n_embd = arguments.width;
  model.n_head = 1;
  model.n_positions = 32;
  model.vocab_size = 256;
  plan::MachineFacts machine = plan::probe_machine(config);
  machine.total_memory_bytes = machine.available_memory_bytes = std::uint64_t{2} << 40U;
  return plan::make_plan(config, model, plan::Placement::configured, machine);
}

// The units with their states and gradients, and both sides of the comparison.
class Updates {
 public:
  explicit Updates(const Arguments& arguments)
      : plan_(plan_of(arguments)),
        resources_(plan_, {SwapMode::create}, nullptr, make_run_device(plan_, nullptr)) {
    std::vector<Ticket> work;
    for (std::size_t u = 0; u < plan_.layouts.size(); ++u) {
      work.push_back(
          resources_.updater->begin_initialise(u, [](std::uint64_t, std::span<float> values) {
            std::fill(values.begin(), values.end(), 1.0F);
          }));
    }
    finish_all(work);
    const TilePlacement& placement = resources_.updater->placement();
    for (std::size_t u = 0; u < plan_.layouts.size(); ++u) {
      const TileRange all{u, 0, placement.shard_count(u)};
      const auto gradient = as<Bf16>(placement.gradient(all, {}));
      std::fill(gradient.begin(), gradient.end(), to_bf16(1e-3F));
      tiles_.push_back(tile(all));
      elements_ += all.count;
      for (std::uint64_t begin = 0; begin < all.count && arguments.tile_elements > 0;
           begin += arguments.tile_elements)
        small_tiles_.push_back(tile(tile_at(u, begin, all.count, arguments.tile_elements)));
    }
  }

  std::uint64_t elements() const { return elements_; }
  std::uint64_t bytes() const {
    const std::size_t weight = plan_.state_format.is_split() ? 0 : sizeof(Bf16);
    return elements_ * (2 * plan_.state_format.element_bytes() + sizeof(Bf16) + weight);
  }

  // GB/s.
  double by_updater() {
    const UpdateSettings settings = next();
    return rate([&] {
      std::vector<Ticket> work;
      for (std::size_t u = 0; u < plan_.layouts.size(); ++u) {
        StateUpdater::Update update = resources_.updater->begin_update(u, settings);
        work.push_back(std::move(update.weights));
        work.push_back(std::move(update.states));
      }
      finish_all(work);
    });
  }
  double by_kernel() {
    const UpdateSettings settings = next();
    const cpu_adam::Group group{settings.groups.front(), tiles_};
    return rate([&] {
      // On a thread of its own, as the updates are: on a busy machine, waking one takes its time.
      other_.begin([&] {
              cpu_adam::step({&group, 1}, settings.step, *resources_.executor);
            })
          .finish();
    });
  }
  double tile_by_tile() {
    const UpdateSettings settings = next();
    return rate([&] {
      for (const cpu_adam::Tile& one : small_tiles_)
        cpu_adam::step(settings.groups.front(), settings.step, one, *resources_.executor);
    });
  }

 private:
  cpu_adam::Tile tile(const TileRange& range) const {
    const TilePlacement& placement = resources_.updater->placement();
    cpu_adam::Tile made = tile_of(plan_, placement.states(range, {}), placement.gradient(range, {}),
                                  placement.weight(range, {}));
    made.first_element = placement.first_element(range.unit) + range.begin;
    return made;
  }
  UpdateSettings next() {
    ++step_;
    return settings_of_update(plan_, step_, config::learning_rate(plan_.config, step_));
  }
  template <typename Work>
  double rate(const Work& work) const {
    return 1e-9 * static_cast<double>(bytes()) / bench::seconds_of(work);
  }

  const plan::Plan plan_;
  RunResources resources_;
  std::vector<cpu_adam::Tile> tiles_, small_tiles_;
  std::uint64_t elements_ = 0;
  std::int64_t step_ = 0;
  Worker other_{"bench"};
};

int run(const Arguments& arguments) {
#if SLUICE_HAVE_TBB
  // Else oneTBB has no more threads than cores.
  const oneapi::tbb::global_control threads(oneapi::tbb::global_control::max_allowed_parallelism,
                                            static_cast<std::size_t>(arguments.threads) + 1);
#endif
  Updates updates(arguments);
  const auto ours = [&] {
    return arguments.tile_elements > 0 ? updates.tile_by_tile() : updates.by_updater();
  };
  ours();  // the first updates fault in caches and threads
  updates.by_kernel();
  bench::Slices slices;
  for (int round = 0; round < arguments.rounds; ++round) {
    for (int i = 0; i < 3; ++i) {
      const int side = (round + i) % 3;
      if (side == 0) slices.ours.push_back(ours());
      if (side == 1) slices.peer.push_back(updates.by_kernel());
      if (side == 2) slices.again.push_back(updates.by_kernel());
    }
  }
  std::printf("{\"format\": \"%s\", \"threads\": %d, \"elements\": %llu, \"bytes\": %llu, ",
              arguments.format.c_str(), arguments.threads,
              static_cast<unsigned long long>(updates.elements()),
              static_cast<unsigned long long>(updates.bytes()));
  std::printf("\"kernel\": \"%s\", \"slices\": ", std::string(cpu_adam::kernel_in_use()).c_str());
  bench::print_slices(slices);
  std::printf("}\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 6 && argc != 7) {
    std::fprintf(stderr,
                 "usage: update_bench FORMAT THREADS LAYERS WIDTH ROUNDS [TILE_ELEMENTS]\n");
    return 2;
  }
  return run({argv[1], std::stoi(argv[2]), std::stoll(argv[3]), std::stoll(argv[4]),
              std::stoi(argv[5]), argc == 7 ? std::stoull(argv[6]) : 0});
} catch (const std::exception& error) {
  std::fprintf(stderr, "update_bench: %s\n", error.what());
  return 1;
}
