#pragma once
// The training configuration: DeepSpeed's JSON schema plus the section "sluice", as plain structs
// with defaults, read and checked once. docs/config.md lists every key.
//
// Not here: whether the machine can provide what is asked for (the planner), and the model file
// (sluice/config/model_config.hpp).
// Thread-compatible: plain values; the functions are thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sluice/base/dtype.hpp"
#include "sluice/config/config_error.hpp"

namespace sluice::config {

// adamw: decoupled weight decay. adam: weight decay added to the gradient.
enum class OptimizerType { adam, adamw };

struct OptimizerConfig {
  // DeepSpeed's "Adam" without "adam_w_mode": false is adamw too.
  OptimizerType type = OptimizerType::adamw;
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool bias_correction = true;
};

enum class WarmupType { log, linear };

struct WarmupLR {
  double warmup_min_lr = 0;
  std::optional<double> warmup_max_lr;  // empty: the optimizer's lr
  std::int64_t warmup_num_steps = 1000;
  WarmupType warmup_type = WarmupType::log;
};
struct WarmupDecayLR {
  std::int64_t total_num_steps = 0;
  double warmup_min_lr = 0;
  double warmup_max_lr = 0.001;
  std::int64_t warmup_num_steps = 1000;
  WarmupType warmup_type = WarmupType::log;
};
struct WarmupCosineLR {
  std::int64_t total_num_steps = 0;
  double warmup_min_ratio = 0;
  std::int64_t warmup_num_steps = 1000;
  double cos_min_ratio = 1e-4;
  WarmupType warmup_type = WarmupType::log;
};
// monostate: the learning rate is constant. Evaluated by sluice/config/lr_schedule.hpp.
using SchedulerConfig = std::variant<std::monostate, WarmupLR, WarmupDecayLR, WarmupCosineLR>;

// Compute in fp16 with a loss scale: DeepSpeed's rules, which docs/numerics.md has.
struct Fp16Config {
  bool enabled = false;
  double loss_scale = 0;                  // the scale of every step; 0: dynamic, as the rest says
  int initial_scale_power = 16;           // the first scale is 2 to this power
  std::int64_t loss_scale_window = 1000;  // steps without overflow until the scale is doubled
  int hysteresis = 2;                     // overflows until the scale is halved for the first time
  bool consecutive_hysteresis = false;    // counted anew after every step without overflow
  double min_loss_scale = 1;

  bool is_dynamic() const { return loss_scale == 0; }
  double initial_scale() const;
};

struct OffloadConfig {
  enum class Device { none, cpu, nvme };
  Device device = Device::none;
  std::string nvme_path;                        // not empty exactly when the device is nvme
  std::vector<std::string> further_nvme_paths;  // of a list: directories to stripe over as well
  std::optional<bool> pin_memory;               // empty: pinned where the machine's limits allow
  std::optional<std::int64_t> buffer_count;     // empty: chosen by the planner
  // Elements per buffer; offload_param only. Empty: chosen by the planner.
  std::optional<std::uint64_t> buffer_size;

  // nvme_path and the further ones; none when the device is not nvme.
  std::vector<std::string> directories() const {
    std::vector<std::string> all;
    if (!nvme_path.empty()) all.push_back(nvme_path);
    all.insert(all.end(), further_nvme_paths.begin(), further_nvme_paths.end());
    return all;
  }
};

// Sizes and thresholds are counts of elements, as in DeepSpeed.
struct ZeroConfig {
  int stage = 0;
  OffloadConfig offload_param;      // other than none only with stage 3
  OffloadConfig offload_optimizer;  // other than none only with stage 1 to 3
  std::uint64_t sub_group_size = 1'000'000'000;
  std::uint64_t prefetch_bucket_size = 50'000'000;
  std::uint64_t max_live_parameters = 1'000'000'000;
  std::uint64_t max_reuse_distance = 1'000'000'000;
  std::uint64_t param_persistence_threshold = 100'000;
  std::uint64_t model_persistence_threshold = 9'223'372'036'854'775'807;  // INT64_MAX: no limit
};

struct AioConfig {
  std::uint64_t block_size = 262'144;  // bytes, a multiple of 4096
  int queue_depth = 32;
  int intra_op_parallelism = 1;
};

struct ByteBudget {
  enum class Kind { automatic, bytes, percent };
  Kind kind = Kind::automatic;
  std::uint64_t value =
      0;  // bytes, or whole percent of what the machine has (1 to 100); 0 when automatic
};

// What a committed step survives: a killed process, loss of power, nothing.
enum class Durability { process, power, none };

// Empty: chosen by the engine.
struct ThreadsConfig {
  std::optional<int> compute;
  std::optional<int> optimizer;
  std::optional<int> io;
};

// How the I/O engine works on the drives.
struct IoConfig {
  std::string backend = "auto";  // or "io_uring", "libaio", "threads"
  // Shares of the directories of a list of nvme_path; empty: as fast as they are measured to be.
  std::vector<unsigned> drive_weights;
  bool submit_polling = false;
  int reads_per_write = 3;  // blocks read in a row while a write waits
};

// What becomes of activations between a unit's forward and its backward: kept as far as the device
// budget goes (automatic); all kept; none, recomputed from the unit's input; none, and the inputs
// wait in host memory.
enum class Activations { automatic, keep, recompute, offload };

// How master weights are kept: fp32 beside the 16-bit weights, or the 16-bit weights and the lower
// halves (4 bytes of a parameter instead of 6).
enum class MasterFormat { fp32, split };
enum class MomentFormat { fp32, bf16 };
// As in the file: "fp32", "split", "bf16".
std::string_view name_of(MasterFormat format);
std::string_view name_of(MomentFormat format);

// What becomes of a step whose loss or gradients are not finite.
enum class NonFinite { skip, stop };

// Where the model computes: a GPU by its index among those that CUDA_VISIBLE_DEVICES leaves, or the
// host; automatic: the first GPU when there is one.
struct ComputeDevice {
  enum class Kind { automatic, host, cuda };
  Kind kind = Kind::automatic;
  int index = 0;  // of a GPU
};
// As in the file: "auto", "host", "cuda:1".
std::string name_of(const ComputeDevice& device);

// Full checkpoints.
struct CheckpointConfig {
  std::string directory;   // empty: no full checkpoints
  std::int64_t every = 0;  // steps between checkpoints; 0: never
  std::int64_t keep = 2;   // number of checkpoints that are kept
};

struct SluiceConfig {
  ComputeDevice device;
  bool deterministic = false;  // LibTorch's algorithms on a GPU; on the host they always are
  bool tf32 = false;           // fp32 matrix products of a GPU
  ByteBudget device_bytes;
  ByteBudget host_bytes;
  Durability durability = Durability::process;
  std::int64_t commit_every = 1;  // steps
  CheckpointConfig checkpoints;
  bool strict = false;
  bool overlap = true;
  NonFinite non_finite = NonFinite::skip;
  Activations activations = Activations::automatic;
  // That go forward and backward together; divides gradient_accumulation_steps. Empty: chosen.
  std::optional<std::int64_t> micro_batches_per_pass;
  // Empty: what a resumed run was begun with; else a split master for bf16 weights, fp32 moments.
  std::optional<MasterFormat> master;
  std::optional<MomentFormat> moments;
  // Host memory, part of host_bytes, for states whose home is on NVMe. Automatic: what is left of
  // host_bytes.
  ByteBudget cache_bytes{ByteBudget::Kind::bytes, 0};
  ThreadsConfig threads;
  IoConfig io;
  std::uint64_t drive_endurance_bytes = 0;  // rated, of each directory's drive; 0: not given
  std::uint64_t seed = 0;
};

struct TrainConfig {
  std::string path;  // as shown in messages
  int world_size = 1;

  // Resolved: train_batch_size = micro_batch_size * gradient_accumulation_steps * world_size.
  std::int64_t train_batch_size = 0;
  std::int64_t micro_batch_size = 0;
  std::int64_t gradient_accumulation_steps = 0;

  OptimizerConfig optimizer;
  SchedulerConfig scheduler;
  double gradient_clipping = 1.0;  // 0: none
  bool bf16 = false;
  Fp16Config fp16;                              // never enabled together with bf16
  std::optional<std::int64_t> steps_per_print;  // empty: nothing is printed
  ZeroConfig zero;
  AioConfig aio;
  SluiceConfig sluice;

  // Of the weights that the model computes with, activations and gradients.
  DType compute_dtype() const;
  // Whether no update of a step may begin before all its gradients are there: clipping needs their
  // norm, and in fp16 one that has overflowed skips the step. Else updates begin as they arrive.
  bool updates_need_all_gradients() const;

  // One line for each mapped key of the file, "mapped: KEY: what it means here", and for each
  // doubtful but valid value, "note: KEY: ...". To be shown once.
  std::vector<std::string> notes;
};

struct LoadOptions {
  int world_size = 1;  // ranks that share a training batch
  // More files with the sections "aio" and "sluice" only, as `sluice nvme tune` writes them: their
  // keys replace those of the file, the last one's last.
  std::vector<std::string> tuned_paths = {};
};

// Reads and checks a file, and those of `tuned_paths`. Throws ConfigError with every mistake of the
// file, or of the first of `tuned_paths` that has one, and InvalidArgument that names the path when
// one cannot be read or world_size is below 1.
TrainConfig load_train_config(const std::string& path, const LoadOptions& options = {});
// The same for text in memory; `shown_path` stands for the file in messages.
TrainConfig parse_train_config(std::string_view text, const std::string& shown_path,
                               const LoadOptions& options = {});

}  // namespace sluice::config
