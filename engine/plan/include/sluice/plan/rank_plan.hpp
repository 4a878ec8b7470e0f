#pragma once
// Runs of many ranks, planned without starting one: the bytes of a rank on each tier, the bytes
// that it moves, and the seconds of each link. Formulas in the parameters of a model
// (docs/memory_model.md has them), for sizes that no machine at hand holds.
//
// Not here: the plan of a run that is started (make_plan.hpp), which counts units, buffers and
// padding. Limitations: units of one size, one pass a step, and links that overlap fully.
// Thread-safe: values and free functions without state.

#include <cstdint>
#include <string>

#include "sluice/config/model_config.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/models/state_format.hpp"
#include "sluice/offload/tier.hpp"
#include "sluice/plan/prediction.hpp"

namespace sluice::plan {

// The model that each rank trains, and the homes of its bytes. Sizes of parameters are in elements.
struct RankShape {
  std::uint64_t parameters = 0;    // P: all units' elements
  std::uint64_t largest_unit = 0;  // parameters of the largest unit, which is gathered whole
  std::uint64_t layers = 0;
  std::uint64_t width = 0;
  std::uint64_t sequence = 0;                     // tokens of a sequence
  std::uint64_t micro_batch = 1;                  // sequences
  std::uint64_t micro_batches = 1;                // that a rank takes in a step
  int stage = 3;                                  // ZeRO's stage, 0 to 3
  offload::Tier weights = offload::Tier::device;  // other than device only in stage 3
  offload::Tier states = offload::Tier::device;   // other than device in stages 1 to 3
  offload::Tier inputs = offload::Tier::device;   // of units, kept for recompute
  std::uint64_t weight_bytes = 2;                 // of a weight, and of an input
  std::uint64_t gradient_bytes = 2;  // of a gradient, while it waits and on its way home
  std::uint64_t wire_bytes = 2;      // of a gradient between ranks
  std::uint64_t slots = 2;           // of states on NVMe; 1: nothing is committed
  models::StateFormat format;
  bool waits_for_norm = true;  // clipping or a loss scale: all gradients are kept until the norm
  bool recompute = true;       // forward is computed again in backward
  bool overlap = true;
};
// The shape of a configuration and a model.
RankShape rank_shape(const config::TrainConfig& config, const config::ModelConfig& model);
// A GPT of about this many parameters: heads of 128, and some 128 times as wide as it is deep, as
// GPT-3 is. At least 10 million; throws InvalidArgument below.
config::ModelConfig model_of_size(std::uint64_t parameters);

// Bytes of one rank on each tier.
struct RankBytes {
  std::uint64_t weights = 0;           // on the shape's tier of weights
  std::uint64_t device_gradients = 0;  // a shard that waits for the norm, without offload
  std::uint64_t host_gradients = 0;    // a shard that waits for the norm, with offload
  std::uint64_t states = 0;            // on the shape's tier of states; NVMe: one slot
  std::uint64_t gathered = 0;          // on the device: two gathered units, two gradients of units
  std::uint64_t inputs = 0;            // on the shape's tier: each unit's input, for recompute
  // Sums by tier. NVMe has each state once in every slot.
  std::uint64_t device_bytes = 0;
  std::uint64_t host_bytes = 0;
  std::uint64_t nvme_bytes = 0;
};
// The bytes of one rank of `ranks`. A shard is 1/ranks of the parameters, rounded up.
// Bytes of a parameter's states in one slot, at their tier.
std::uint64_t state_bytes(const RankShape& shape);
RankBytes rank_bytes(const RankShape& shape, std::uint64_t ranks);

// Bytes that a step moves. All ranks together move them, except inputs, which each rank moves.
struct RankTraffic {
  double gathered_bytes = 0;  // weights; each rank receives those of the others
  double reduced_bytes = 0;   // gradients; each rank sends those of the others
  double copy_bytes = 0;      // between host and device, both directions; without inputs
  double input_bytes = 0;     // as copy_bytes, inputs of units
  double read_bytes = 0;      // from the drives
  double written_bytes = 0;
  double updated = 0;  // elements that the update steps
};
RankTraffic rank_traffic(const RankShape& shape);
// Floating point operations of one rank in a step: 2 for each parameter and token in forward, twice
// that in backward, forward again with recompute; and attention over whole sequences.
double rank_flops(const RankShape& shape);

// Rates of the hardware. Ranks of a host share its drives, and its processors for the update.
struct RankRates {
  double flops_per_second = 0;            // a rank's device
  double network_bytes_per_second = 0;    // a rank, in each direction
  double copy_bytes_per_second = 0;       // a rank, between host and device
  double drive_bytes_per_second = 0;      // all drives of a host; reads and writes added
  double update_elements_per_second = 0;  // all processors of a host
};

// Seconds that each link is busy in a step of one rank, when no other rank is there. The part of a
// shard divides by the ranks; the rest is each rank's own.
struct StepWork {
  double compute_seconds = 0;
  double update_seconds = 0;  // for all parameters, by the processors of one host
  double sharded_copy_seconds = 0;
  double own_copy_seconds = 0;       // inputs of units
  double sharded_drive_seconds = 0;  // all, by the drives of one host
  double own_drive_seconds = 0;
  double gathered_bytes = 0;  // weights that a step gathers, before (N-1)/N
  double reduced_bytes = 0;
  double tokens = 0;          // that a rank takes in a step
  double beyond_bound = 0;    // seconds of a one-rank step beyond its bound; 0 when unknown
  bool shares_cores = false;  // no GPU: compute, copies and update take turns on the cores
  // The rank of these seconds has such shares of the host's cores: to compute and copy, to update.
  double cores_share = 1;
  double update_cores_share = 1;
  bool overlap = true;
};
StepWork step_work(const RankShape& shape, const RankRates& rates);
// The work of a plan of one rank, with rates that were measured with the plan's threads: predict()
// by links, with the shape's bytes on the network. `host_cores`: cores of the host, at least 1;
// without a GPU, ranks take turns where together they have more threads. Throws nothing that
// predict() does not.
StepWork step_work(const Plan& plan, const MachineRates& rates, int host_cores);

struct RankSetting {
  std::uint64_t ranks = 1;
  std::uint64_t ranks_per_host = 1;  // at most `ranks` of them are on a host
  double network_bytes_per_second = 0;
};

// Predicted seconds of a step of each rank, and tokens of all ranks. `bound_by` may be "network".
struct RankPrediction : Prediction {
  double gather_seconds = 0;
  double reduce_seconds = 0;
};
// The longest link bounds a step whose links overlap; without overlap they add. With one rank the
// links and the step are those of predict(). Throws InvalidArgument when several ranks have no
// network rate.
RankPrediction predict_ranks(const StepWork& work, const RankSetting& setting);

}  // namespace sluice::plan
