#pragma once
// The plan of a run: the home of every byte, computed before anything is allocated. The trainer
// allocates what the plan says and nothing else. Not here: how a plan is made (make_plan.hpp) and
// shown (plan_text.hpp). No LibTorch. Thread-compatible: plain values.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sluice/base/dtype.hpp"
#include "sluice/config/model_config.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/models/param_groups.hpp"
#include "sluice/models/state_format.hpp"
#include "sluice/plan/machine.hpp"
#include "sluice/plan/tier_bytes.hpp"
#include "sluice/plan/unit_placement.hpp"
#include "sluice/zero/unit_layout.hpp"

namespace sluice::plan {

// configured: the configuration's tiers and budgets. resident: everything on the device, without
// budgets and drives; a run to compare with.
enum class Placement { configured, resident };

// The calls of a training loop of the user's own (OwnModel). Empty for a model from a file.
struct OwnCalls {
  std::vector<std::vector<std::size_t>> calls;    // layouts used together, in forward order
  std::vector<int> backwards;                     // by layout: calls that add to its gradient
  std::optional<std::uint64_t> activation_bytes;  // empty: unknown
};

struct ModelSize {
  std::uint64_t parameters = 0;  // elements; tied ones count once
  // Weights, gradients, and master and moments as files hold them, in the run's formats: with Adam
  // and 16-bit weights 16 bytes per parameter. A frozen parameter counts its weights only.
  std::uint64_t state_bytes = 0;
  std::uint64_t bytes_per_parameter = 0;  // of one that trains
};

// Budgets of the two tiers in memory. Empty: unlimited, as in a resident run.
struct BudgetBytes {
  std::optional<std::uint64_t> device_bytes;
  std::optional<std::uint64_t> host_bytes;
};

// Least budgets that this run could do with: everything spilled, no overlap.
struct LeastBytes {
  std::uint64_t device_bytes = 0;
  std::uint64_t host_bytes = 0;
};

// Memory that the plan takes.
struct PlannedBytes {
  TierBytes tiers;  // the sums of the rows
  std::vector<PlanRow> rows;
  bool pinned_staging = false;      // host buffers are pinned
  std::uint64_t pinned_bytes = 0;   // part of tiers.host
  std::uint64_t runtime_bytes = 0;  // LibTorch, oneDNN and the program itself, outside the tiers
};

struct Threads {
  int compute = 1;  // LibTorch; part of the bits, fixed for a run
  int optimizer = 1;
  int io = 1;
};

// Micro-batches that go forward and backward together.
struct PassSizes {
  std::size_t each = 1;  // of each pass; activations are saved for no more
  std::size_t last = 1;  // of the last pass, which has the rest of a step's: `each` or more
  bool operator==(const PassSizes&) const = default;
};

// The schedule of a step.
struct StepSchedule {
  Threads threads;
  PassSizes passes;
  int prefetch_units = 1;       // units that are gathered ahead of the computing one
  int gradients_in_flight = 2;  // flat gradient buffers on the device
};

// The tiles of the optimizer step. Read-ahead tiles have the same size; they hold states that are
// read while their gradients are computed.
struct UpdateRing {
  std::uint64_t tile_elements = 0;
  std::uint64_t tile_bytes = 0;  // 0: no update needs a tile
  int tiles = 0;
  int read_ahead_tiles = 0;
  // Tiles in the device's memory, for updates that the device computes. They have as many elements.
  int device_tiles = 0;
  std::uint64_t device_tile_bytes = 0;
};
// The tiles of the mover, in each direction.
struct MoverRing {
  std::uint64_t tile_bytes = 0;  // 0: nothing moves through files
  int tiles = 0;
};
// Rings of buffers in host memory.
struct HostRings {
  UpdateRing update;
  MoverRing mover;
  // Shared homes of gradients, where updates begin as gradients arrive. 0: each unit has its own
  // home.
  int gradient_slots = 0;
  std::uint64_t gradient_slot_bytes = 0;
};

// Disk space that one directory needs.
struct DiskNeed {
  std::string directory;
  std::uint64_t needed_bytes = 0;
  std::optional<std::uint64_t> free_bytes;  // empty: the directory does not exist
  // Another planned directory is on the same file system; free_bytes excludes its need.
  bool shares_file_system = false;
  std::string name;  // for people: the directory, or with several ranks PoorestRanks::disks
  bool is_short() const { return free_bytes && needed_bytes > *free_bytes; }
};

// Directories on drives. Files are striped over several; the first has the lock and the manifest.
// An empty list: nothing of this kind is on NVMe.
struct DriveDirectories {
  std::vector<std::string> states;   // two slots of master and moments
  std::vector<std::string> scratch;  // spilled weights, gradients and inputs
  std::vector<DiskNeed> disks;       // by directory, checkpoints included
};

// Bytes that one step moves, by link.
struct StepTraffic {
  std::uint64_t h2d_bytes = 0;
  std::uint64_t d2h_bytes = 0;
  std::uint64_t nvme_read_bytes = 0;
  std::uint64_t nvme_written_bytes = 0;  // in a committed step
  std::uint64_t nvme_written_between_commits_bytes = 0;
  std::uint64_t nvme_cached_bytes = 0;  // reads that the cache saves
};

struct Plan {
  config::ModelConfig model;
  config::TrainConfig config;
  Placement placement = Placement::configured;
  std::vector<zero::UnitLayout> layouts;
  OwnCalls own;
  ModelSize model_size;
  DType compute_dtype = DType::bf16;
  models::StateFormat state_format;
  models::ParamGroups groups;
  DeviceFacts device;
  BudgetBytes budget;
  LeastBytes least;
  PlannedBytes planned;
  std::vector<UnitPlacement> units;
  StepSchedule schedule;
  HostRings rings;
  DriveDirectories directories;
  StepTraffic traffic;
  // A line for each choice of `auto`, and for each spill, promotion and other downgrade.
  std::vector<std::string> choices;

  // Passes of a step. With several passes, gradients stay on the device between passes.
  std::size_t passes() const {
    const auto all = static_cast<std::size_t>(config.gradient_accumulation_steps);
    return 1 + (all - schedule.passes.last) / schedule.passes.each;
  }
  std::size_t micro_batches_of(std::size_t pass) const {
    return pass + 1 == passes() ? schedule.passes.last : schedule.passes.each;
  }
  // Gradients of several passes add up in their home on the device.
  bool gradients_summed_on_device() const { return !own_loop() && passes() > 1; }
  // The device updates some unit: it has all of it, or tiles for it.
  bool device_updates() const;
  // The plan is for a training loop of the user's own.
  bool own_loop() const { return !own.calls.empty(); }
  // Each update begins in backward, when its gradient is complete; else after all gradients.
  bool updates_in_backward() const {
    return !config.updates_need_all_gradients() &&
           (!own_loop() || config.sluice.updates.in_backward);
  }
  // True with several ranks below stage 3, where device memory has room for all of the unit's
  // weights. Weights without this room are divided over the ranks.
  bool keeps_whole_weights(std::size_t unit) const;
  // Ranks exchange device memory through host memory.
  bool stages_ranks() const {
    return config.world_size > 1 && !device.host_addressable && !device.has_nccl;
  }
  // Every unit's optimizer states are in files, so a run can resume from the swap directory alone.
  bool states_all_on_nvme() const;
  // That of the store of states. States of some units only are never committed, so one slot is
  // enough for them.
  Durability state_durability() const {
    return states_all_on_nvme() ? config.sluice.durability : Durability::none;
  }
  // Bytes of one unit input: (micro_batch_size, n_positions, n_embd) elements of compute_dtype, not
  // rounded up. For a model from a file.
  std::uint64_t unit_input_bytes() const;
  // The directories of the states; without states on NVMe, those of the scratch. Empty: no drive
  // is used.
  const std::vector<std::string>& swap_directories() const {
    return directories.states.empty() ? directories.scratch : directories.states;
  }
  // Threads that a run may have beside its main thread, without those of its trace and data.
  int further_threads() const;
};

}  // namespace sluice::plan
