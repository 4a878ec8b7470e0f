#pragma once
// The training configuration: DeepSpeed's JSON schema and the section "sluice", as plain structs
// with defaults, read and checked once. docs/config.md lists every key.
//
// Not here: whether the machine has the resources (the planner checks that), and the model file
// (sluice/config/model_config.hpp).
// Thread-compatible: plain values; the functions are thread-safe.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/base/dtype.hpp"
#include "sluice/base/durability.hpp"
#include "sluice/config/config_error.hpp"
#include "sluice/config/monitor_config.hpp"
#include "sluice/config/reduction_config.hpp"
#include "sluice/config/scheduler_config.hpp"

namespace sluice::config {

// adamw: decoupled weight decay. adam: weight decay is added to the gradient.
enum class OptimizerType { adam, adamw, adagrad, lion, sgd };
// The name in the file: "Adam", "AdamW", "Adagrad", "Lion", "SGD".
std::string_view name_of(OptimizerType type);

// Each type reads the values that it has (docs/config.md); the others stay at their defaults.
struct OptimizerConfig {
  // DeepSpeed's "Adam" is adamw too, unless "adam_w_mode" is false.
  OptimizerType type = OptimizerType::adamw;
  double lr = 1e-3;
  double beta1 = 0.9;  // Adam, AdamW, Lion
  double beta2 = 0.999;
  double eps = 1e-8;  // Adam, AdamW, Adagrad
  double weight_decay = 0;
  bool bias_correction = true;           // Adam, AdamW
  bool amsgrad = false;                  // Adam, AdamW
  double lr_decay = 0;                   // Adagrad
  double initial_accumulator_value = 0;  // Adagrad: the sum of squares before the first step
  double momentum = 0;                   // SGD; 0: no momentum buffer
  double dampening = 0;                  // SGD
  bool nesterov = false;                 // SGD
  bool maximize = false;                 // all but Lion

  // Whether optimizer.params of this type may have `param`: "betas", "momentum" and so on.
  bool reads(std::string_view param) const;
  // Calls f(name, member) for each value of optimizer.params, and f("betas", beta1, beta2).
  static void visit(auto& o, const auto& f) {
    f("lr", o.lr);
    f("betas", o.beta1, o.beta2);
    f("eps", o.eps);
    f("weight_decay", o.weight_decay);
    f("bias_correction", o.bias_correction);
    f("amsgrad", o.amsgrad);
    f("lr_decay", o.lr_decay);
    f("initial_accumulator_value", o.initial_accumulator_value);
    f("momentum", o.momentum);
    f("dampening", o.dampening);
    f("nesterov", o.nesterov);
    f("maximize", o.maximize);
  }
};

// A parameter group: the parameters that it takes, and the values that differ from the optimizer's.
struct GroupConfig {
  // Patterns of whole names, as in an exported file; "*" stands for any text, "?" for one
  // character.
  std::vector<std::string> match = {};
  std::optional<double> lr = {};  // the rate before the schedule, which scales it in proportion
  std::optional<double> weight_decay = {};
  std::optional<double> beta1 = {};
  std::optional<double> beta2 = {};
  std::optional<double> eps = {};
  std::optional<double> momentum = {};
};

// A parameter belongs to the first entry that matches it. sluice/models/param_groups.hpp applies
// the groups to the parameters of a model.
struct GroupsConfig {
  std::vector<GroupConfig> entries = {};
  // Biases and norms have no weight decay, except in groups that set one.
  bool no_decay_of_biases_and_norms = false;
};

// Computing in fp16 with a loss scale, by DeepSpeed's rules (docs/numerics.md).
struct Fp16Config {
  bool enabled = false;
  double loss_scale = 0;                  // scale of every step; 0: dynamic, by the fields below
  int initial_scale_power = 16;           // the first scale is 2^initial_scale_power
  std::int64_t loss_scale_window = 1000;  // steps without overflow until the scale doubles
  int hysteresis = 2;                     // overflows until the scale halves for the first time
  bool consecutive_hysteresis = false;  // a step without overflow restarts the count of hysteresis
  double min_loss_scale = 1;
  // ZeRO stage 0, where DeepSpeed has simpler rules: every overflow halves the scale, whatever
  // hysteresis says, and at min_loss_scale the scale stays and the run goes on.
  bool is_unpartitioned = false;

  bool is_dynamic() const { return loss_scale == 0; }
  double initial_scale() const;
  // Calls f(name, member) for each key of a dynamic scale.
  static void visit_dynamic(auto& c, const auto& f) {
    f("initial_scale_power", c.initial_scale_power);
    f("loss_scale_window", c.loss_scale_window);
    f("hysteresis", c.hysteresis);
    f("consecutive_hysteresis", c.consecutive_hysteresis);
    f("min_loss_scale", c.min_loss_scale);
  }
};

// Where parameters or optimizer states have their home.
struct OffloadConfig {
  enum class Device { none, cpu, nvme };
  Device device = Device::none;
  // "nvme_path", or its list to stripe over. Not empty exactly when the device is nvme.
  std::vector<std::string> directories;
  std::optional<bool> pin_memory;            // empty: pinned where a GPU computes
  std::optional<std::int64_t> buffer_count;  // empty: chosen by the planner
  // Elements per buffer; offload_param only. Empty: chosen by the planner.
  std::optional<std::uint64_t> buffer_size;
  // The share of the parameters whose states leave the GPU; offload_optimizer only.
  double ratio = 1;
};
// The name in the file: "none", "cpu", "nvme".
std::string_view name_of(OffloadConfig::Device device);

// The ZeRO stage that divides the weights over the ranks. Each rank keeps whole weights in the
// stages below.
inline constexpr int kStageOfShardedWeights = 3;

// The section "zero_optimization". Sizes and thresholds count elements, as in DeepSpeed.
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
  ReductionConfig reduction;                                              // keys of the top level

  // Whose directories hold the optimizer states, and whose hold everything else that is on NVMe.
  const OffloadConfig& states_place() const {
    return offload_optimizer.directories.empty() ? offload_param : offload_optimizer;
  }
  const OffloadConfig& scratch_place() const {
    return offload_param.directories.empty() ? offload_optimizer : offload_param;
  }
};

// The section "aio".
struct AioConfig {
  std::uint64_t block_size = 262'144;  // bytes, a multiple of 4096
  int queue_depth = 32;
  int intra_op_parallelism = 1;
};

// A budget of memory.
struct ByteBudget {
  enum class Kind { automatic, bytes, percent };
  Kind kind = Kind::automatic;
  // Bytes, or whole percent (1 to 100): of the tier's free memory; for cache_bytes, of the states
  // on NVMe; for speculative_bytes, of the states in host memory; for checkpoint_bytes, of the
  // states that are not on NVMe. 0 when automatic.
  std::uint64_t value = 0;
};

// Numbers of threads. Empty: the engine chooses.
struct ThreadsConfig {
  std::optional<int> compute;
  std::optional<int> optimizer;
  std::optional<int> io;
};

// Settings of the I/O engine.
struct IoConfig {
  std::string backend = "auto";  // or "io_uring", "libaio", "threads"
  // By directory of a list in nvme_path, its share of the bytes. Empty: by measured speed.
  std::vector<unsigned> drive_weights;
  bool submit_polling = false;
  int reads_per_write = 3;                  // blocks read in a row while a write waits
  std::uint64_t drive_endurance_bytes = 0;  // rated writes of each directory's drive; 0: unknown
};

// Activations between a unit's forward and its backward.
// - automatic: saved as far as the device budget allows; the other units are recomputed.
// - keep: all saved.
// - recompute: none saved; backward recomputes them from the unit's input.
// - offload: as recompute, and the inputs wait in host memory.
enum class Activations { automatic, keep, recompute, offload };
// The name in the file: "auto", "keep", "recompute", "offload".
std::string_view name_of(Activations activations);

// The format of master weights. fp32: fp32 master beside the 16-bit weights, 6 bytes per parameter.
// split: the 16-bit weights and the lower halves, 4 bytes per parameter.
enum class MasterFormat { fp32, split };
enum class MomentFormat { fp32, bf16 };
// The name in the file: "fp32", "split", "bf16".
std::string_view name_of(MasterFormat format);
std::string_view name_of(MomentFormat format);

// A step with a non-finite loss or gradient is skipped, or stops the run.
enum class NonFinite { skip, stop };

// The device that computes: the host, or a GPU. automatic: the first GPU, or the host without one.
struct ComputeDevice {
  enum class Kind { automatic, host, cuda };
  Kind kind = Kind::automatic;
  // The GPU's number among those that CUDA_VISIBLE_DEVICES leaves. Empty: the ranks of a host take
  // its GPUs in turn, and one rank takes the first.
  std::optional<int> index = {};
};
// The name in the file: "auto", "host", "cuda", "cuda:1".
std::string name_of(const ComputeDevice& device);
// The device of that name; nullopt: there is none.
std::optional<ComputeDevice> find_device(const std::string& name);

// How a GPU computes. On the host LibTorch is always deterministic.
struct GpuMath {
  bool deterministic = false;  // only algorithms of LibTorch that give equal bits in each run
  bool tf32 = false;           // fp32 matrix products round their factors to TF32
};

// Full checkpoints.
struct CheckpointConfig {
  std::string directory;   // empty: no full checkpoints
  std::int64_t every = 0;  // steps between them; 0: one at the end, of states not on NVMe
  std::int64_t keep = 2;   // number of checkpoints that are kept
  // Host memory for copies of the states, so that steps go on while a checkpoint is written. Part
  // of host_bytes. Automatic: the rest of host_bytes, with `every` above 0.
  ByteBudget copy_bytes = {};
};

// Micro-batches of a step that go forward and backward together.
struct PassConfig {
  // In each pass. Divides gradient_accumulation_steps, less `last`. Empty: the planner chooses.
  std::optional<std::int64_t> each;
  // In the last pass: `each` or more. Only beside it. Empty: `each`.
  std::optional<std::int64_t> last;
  // The `all` micro-batches of a step, 1 or more, make such passes. `each` is set.
  bool fit(std::int64_t all) const {
    const std::int64_t ending = last.value_or(*each);
    return *each >= 1 && ending >= *each && ending <= all && (all - ending) % *each == 0;
  }
};

// How units are updated whose states are in host memory.
struct UpdatesConfig {
  // Host memory for second states, so that updates begin before the norm is known. Part of
  // host_bytes. Automatic: the rest of host_bytes.
  ByteBudget speculative_bytes{ByteBudget::Kind::bytes, 0};
  // A GPU updates part of the units whose weights are at home there.
  bool on_gpu = false;
  // In a loop of the user's own: each update begins in backward, when its gradient is complete.
  bool in_backward = false;
};

// The section "sluice".
struct SluiceConfig {
  ComputeDevice device;
  GpuMath gpu_math;
  ByteBudget device_bytes;
  ByteBudget host_bytes;
  Durability durability = Durability::process;
  std::int64_t commit_every = 1;  // steps
  CheckpointConfig checkpoints;
  bool strict = false;
  bool approximate = false;  // train Lamb, 1-bit and 0/1 Adam files with AdamW
  bool overlap = true;
  NonFinite non_finite = NonFinite::skip;
  Activations activations = Activations::automatic;
  PassConfig passes;
  // Empty: a resumed run keeps its format. A new run has a split master for bf16 weights, otherwise
  // an fp32 master; moments in fp32.
  std::optional<MasterFormat> master;
  std::optional<MomentFormat> moments;
  // Host memory that caches states on NVMe. Part of host_bytes. Automatic: the rest of host_bytes.
  ByteBudget cache_bytes{ByteBudget::Kind::bytes, 0};
  UpdatesConfig updates;
  ThreadsConfig threads;
  IoConfig io;
  std::uint64_t seed = 0;
};

struct TrainConfig {
  std::string path;  // as shown in messages
  int world_size = 1;
  int rank = 0;  // this process's rank, below world_size

  // Resolved: train_batch_size = micro_batch_size * gradient_accumulation_steps * world_size.
  std::int64_t train_batch_size = 0;
  std::int64_t micro_batch_size = 0;
  std::int64_t gradient_accumulation_steps = 0;

  OptimizerConfig optimizer;
  GroupsConfig groups;  // parameter groups
  SchedulerConfig scheduler;
  double gradient_clipping = 1.0;  // 0: none
  bool bf16 = false;
  Fp16Config fp16;  // never enabled together with bf16
  // Gradients are summed in fp32 and stay so until their update; without it in compute_dtype().
  bool fp32_gradient_sums = false;
  bool drop_last = false;  // an epoch ends with its last whole batch
  MonitorsConfig monitors;
  ZeroConfig zero;
  AioConfig aio;
  SluiceConfig sluice;

  // The type of the weights that compute, of activations, and of the gradients that one backward
  // computes.
  DType compute_dtype() const;
  // The type in which gradients are summed, and in which they wait for their update.
  DType gradient_dtype() const { return fp32_gradient_sums ? DType::fp32 : compute_dtype(); }
  // The type of gradients between ranks.
  DType wire_dtype() const { return zero.reduction.wire_dtype.value_or(gradient_dtype()); }
  // The sum of gradients over the ranks, as units have it, is divided by this.
  double divisor_of_sum() const { return zero.reduction.divisor_of_sum(world_size); }
  // Whether updates wait for all gradients of the step: clipping needs the norm, and an overflow in
  // fp16 skips the step. A unit with second states does not wait. False: each update begins when
  // its gradient arrives; in a loop of the user's own only with UpdatesConfig::in_backward.
  bool updates_need_all_gradients() const;

  // Lines to show once: "mapped: KEY: meaning here" for each mapped key of the file, and
  // "note: KEY: ..." for each valid but doubtful value.
  std::vector<std::string> notes;
  // Where each value that is not a default came from, by key path: "ds.json:3:5",
  // "--learning-rate", or "auto" where a default stands for the file's "auto".
  std::map<std::string, std::string, std::less<>> origins;
};

// A value of the command line for a key of the configuration.
struct Setting {
  std::string key;         // "optimizer.params.lr"; a number at the end is the index in a list
  std::string value;       // JSON, or a text that is taken as a string
  std::string flag;        // that gave it, for messages: "--learning-rate"
  bool only_auto = false;  // gives a value only where the file has "auto"
};
// The setting of `--set KEY=VALUE`. Throws InvalidArgument without a "=".
Setting parse_setting(const std::string& text);

struct LoadOptions {
  int world_size = 1;  // ranks that share a training batch
  // More files with the sections "aio" and "sluice" only, as `sluice nvme tune` writes them. Their
  // keys replace those of the file; later files replace earlier ones.
  std::vector<std::string> tuned_paths = {};
  // They replace values of the first file; later settings replace earlier ones.
  std::vector<Setting> settings = {};
  // The reader of messages has the program's flags, so messages name them. False: values are given
  // in the file alone.
  bool has_flags = false;
};

// Reads and checks a file, and the files of `tuned_paths`. In place of a file's path, `path` may be
// the file's text in url-safe base64, as DeepSpeed takes it. Throws ConfigError with every mistake
// of the file, or of the first file of `tuned_paths` with a mistake. Throws InvalidArgument, with
// the path, when a file is unreadable, and InvalidArgument when world_size is below 1.
TrainConfig load_train_config(const std::string& path, const LoadOptions& options = {});
// The file at `path`, or its text in base64, as JSON of RFC 8259: without comments, with every
// quote and comma. Keys and values are not checked. Throws ConfigError for a text that is no JSON
// object, or has a key twice; InvalidArgument when the file is unreadable.
std::string strict_json(const std::string& path);
// The text of a configuration in url-safe or common base64; empty when `text` is not one, or names
// a file. It may have spaces around it, lack its padding, and begin with a mark of byte order or a
// comment.
std::string decoded_config(std::string_view text);
// True for a file with nothing but the sections "aio" and "sluice", as `sluice nvme tune` writes
// it. False for any other file, also one that is unreadable.
bool is_tuned_file(const std::string& path);
// Checks text in memory in place of the first file. Messages show `shown_path` as its name. Throws
// as load_train_config() does.
TrainConfig parse_train_config(std::string_view text, const std::string& shown_path,
                               const LoadOptions& options = {});

}  // namespace sluice::config
