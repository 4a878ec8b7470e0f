#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/base/time/elapsed.hpp"
#include "sluice/base/worker.hpp"
#include "sluice/zero/device_ranks.hpp"

namespace sluice::zero {

namespace {

using offload::DeviceSpan;

// Parts begin at multiples of it in a shard, so no element is divided.
constexpr std::size_t kGrain = 64;

// One copy between the device and a place of the staging memory.
struct PartCopy {
  DeviceSpan device;
  std::size_t at = 0;
};

// A part of a call: what is copied before it and after it, and the host memory that it works on.
struct Part {
  std::vector<PartCopy> out;  // device to host, before
  std::vector<PartCopy> in;   // host to device, after
  std::size_t input_bytes = 0;
  std::size_t output_bytes = 0;  // behind the input
};

class StagedCommunicator final : public Communicator {
 public:
  using Communicator::begin;

  StagedCommunicator(std::unique_ptr<Communicator> host, const StagingOptions& options)
      : host_(std::move(host)),
        device_(*options.device),
        // The root of scatter and gather has the whole and one shard.
        piece_bytes_(options.size_bytes / 2 / (ranks() + 1) / kGrain * kGrain),
        half_bytes_((ranks() + 1) * piece_bytes_),
        memory_(options.memory->allocate(2 * half_bytes_, "calls of ranks on device memory")),
        worker_("staged-" + std::to_string(host_->rank())) {
    SLUICE_CHECK(piece_bytes_ > 0, std::to_string(options.size_bytes) +
                                       " bytes of staging memory for " + std::to_string(ranks()) +
                                       " ranks");
  }
  ~StagedCommunicator() override {
    if (under_way_ > 0) host_->abort("its communicator was destroyed during a call");
  }
  StagedCommunicator(const StagedCommunicator&) = delete;
  StagedCommunicator& operator=(const StagedCommunicator&) = delete;

  int rank() const override { return host_->rank(); }
  int world_size() const override { return host_->world_size(); }
  bool on_device() const override { return true; }

  Ticket begin(const HostCall& call) override {
    return begin_counted(call, std::max(call.input.size(), call.output.size()),
                         [this, call] { host_->begin(call).finish(); });
  }
  Ticket begin(const DeviceCall& call) override {
    return begin_counted(call, std::max(call.input.size_bytes(), call.output.size_bytes()),
                         [this, call] { run(call); });
  }
  void abort(const AbortReason& why) override { host_->abort(why); }
  CommunicatorCounters counters() const override { return counters_.counters(); }
  void observe(CallObserver observer) override { counters_.observe(std::move(observer)); }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(world_size()); }
  Ticket begin_counted(const RankCall& call, std::size_t message_bytes, std::function<void()> run);
  void run(const DeviceCall& call);
  std::vector<Part> parts_of(const DeviceCall& call) const;
  Part sharded_part(const DeviceCall& call, std::size_t begin, std::size_t size_bytes) const;
  Part rooted_part(const DeviceCall& call, std::size_t begin, std::size_t size_bytes) const;
  Part plain_part(const DeviceCall& call, std::size_t begin, std::size_t size_bytes) const;
  std::span<std::byte> half(std::size_t part) const {
    return memory_.bytes().subspan(part % 2 * half_bytes_, half_bytes_);
  }
  std::vector<Ticket> begin_out(const Part& part, std::span<std::byte> host,
                                const offload::ComputePoint& after);
  std::vector<Ticket> begin_in(const Part& part, std::span<std::byte> host,
                               const offload::ComputePoint& after);

  const std::unique_ptr<Communicator> host_;  // used by the worker's thread
  offload::Device& device_;
  const std::size_t piece_bytes_;  // of a shard, in a part
  const std::size_t half_bytes_;
  const offload::Buffer memory_;  // two halves: one is exchanged, the other one copied
  CallCounters counters_;
  std::atomic<int> under_way_{0};
  Worker worker_;  // last: its tasks use the rest
};

// Where `rank`'s piece of a shard begins in whole memory of shards.
DeviceSpan piece(DeviceSpan whole, std::size_t rank, std::size_t shard_bytes, std::size_t begin,
                 std::size_t size_bytes) {
  return whole.subspan(rank * shard_bytes + begin, size_bytes);
}

Ticket StagedCommunicator::begin_counted(const RankCall& call, std::size_t message_bytes,
                                         std::function<void()> run) {
  ++under_way_;
  return worker_.begin([this, call, message_bytes, run = std::move(run)] {
    const auto begun_at = std::chrono::steady_clock::now();
    const CommunicatorCounters before = host_->counters();
    const std::exception_ptr error = error_of(run);
    const CommunicatorCounters after = host_->counters();
    counters_.add_headers(after.header_bytes - before.header_bytes);
    if (!error) {
      counters_.add({call.operation, message_bytes, 1, after.sent_bytes() - before.sent_bytes(),
                     after.received_bytes() - before.received_bytes(), seconds_since(begun_at)},
                    call.label);
    }
    --under_way_;
    if (error) std::rethrow_exception(error);
  });
}

void StagedCommunicator::run(const DeviceCall& call) {
  const std::string mistake =
      find_mistake(call, call.input.size_bytes(), call.output.size_bytes(), rank(), world_size());
  SLUICE_CHECK(mistake.empty(), "rank " + std::to_string(rank()) + ": " + mistake);
  const std::vector<Part> parts = parts_of(call);
  std::vector<Ticket> out = begin_out(parts[0], half(0), call.after);
  std::vector<Ticket> in;  // of the part before
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    finish_all(out);
    HostCall host{call, half(i).first(part.input_bytes),
                  half(i).subspan(part.input_bytes, part.output_bytes)};
    // Ranks that make calls of different sizes differ in the number of parts.
    if (parts.size() > 1)
      host.label += " (part " + std::to_string(i + 1) + " of " + std::to_string(parts.size()) + ")";
    Ticket exchange = host_->begin(host);
    finish_all(in);
    if (i + 1 < parts.size()) out = begin_out(parts[i + 1], half(i + 1), call.after);
    exchange.finish();
    in = begin_in(part, half(i), call.after);
  }
  finish_all(in);
}

std::vector<Part> StagedCommunicator::parts_of(const DeviceCall& call) const {
  const bool sharded =
      call.operation == Operation::all_gather || call.operation == Operation::reduce_scatter;
  const bool rooted = call.operation == Operation::scatter || call.operation == Operation::gather;
  // A part takes a piece of one shard, or of all of the memory.
  std::size_t total = std::max(call.input.size_bytes(), call.output.size_bytes());
  if (sharded) total /= ranks();
  if (call.operation == Operation::scatter) total = call.output.size_bytes();
  if (call.operation == Operation::gather) total = call.input.size_bytes();
  const std::size_t most = sharded || rooted ? piece_bytes_ : half_bytes_;
  std::vector<Part> parts;
  for (std::size_t begin = 0; begin < total || parts.empty(); begin += most) {
    const std::size_t size = std::min(most, total - begin);
    parts.push_back(sharded  ? sharded_part(call, begin, size)
                    : rooted ? rooted_part(call, begin, size)
                             : plain_part(call, begin, size));
  }
  return parts;
}

Part StagedCommunicator::sharded_part(const DeviceCall& call, std::size_t begin,
                                      std::size_t size_bytes) const {
  const std::size_t shard_bytes = call.output.size_bytes() / ranks();
  Part part;
  part.output_bytes = ranks() * size_bytes;
  for (std::size_t r = 0; r < ranks(); ++r) {
    const PartCopy copy{piece(call.output, r, shard_bytes, begin, size_bytes), r * size_bytes};
    const bool own = r == static_cast<std::size_t>(rank());
    const bool gathers = call.operation == Operation::all_gather;
    if (own || !gathers) part.out.push_back(copy);
    if (own != gathers) part.in.push_back(copy);
  }
  return part;
}

Part StagedCommunicator::rooted_part(const DeviceCall& call, std::size_t begin,
                                     std::size_t size_bytes) const {
  const bool scatters = call.operation == Operation::scatter;
  const bool is_root = rank() == call.root;
  Part part;
  const std::size_t whole_bytes = is_root ? ranks() * size_bytes : 0;
  part.input_bytes = scatters ? whole_bytes : size_bytes;
  part.output_bytes = scatters ? size_bytes : whole_bytes;
  const std::size_t shard_at = scatters ? part.input_bytes : 0;
  const std::size_t whole_at = scatters ? 0 : part.input_bytes;
  const DeviceSpan shard = scatters ? call.output : call.input;
  const DeviceSpan whole = scatters ? call.input : call.output;
  const PartCopy own{shard.subspan(begin, size_bytes), shard_at};
  (scatters ? part.in : part.out).push_back(own);
  for (std::size_t r = 0; is_root && r < ranks(); ++r) {
    (scatters ? part.out : part.in)
        .push_back(
            {piece(whole, r, shard.size_bytes(), begin, size_bytes), whole_at + r * size_bytes});
  }
  return part;
}

Part StagedCommunicator::plain_part(const DeviceCall& call, std::size_t begin,
                                    std::size_t size_bytes) const {
  Part part;
  if (call.operation == Operation::barrier) return part;
  const bool sends = call.operation == Operation::send;
  const PartCopy copy{(sends ? call.input : call.output).subspan(begin, size_bytes), 0};
  (sends ? part.input_bytes : part.output_bytes) = size_bytes;
  const bool is_root = rank() == call.root;
  const bool has_values =
      call.operation == Operation::broadcast ? is_root : call.operation != Operation::receive;
  const bool gets_values = call.operation == Operation::broadcast ? !is_root
                           : call.operation == Operation::reduce  ? is_root
                                                                  : !sends;
  if (has_values) part.out.push_back(copy);
  if (gets_values) part.in.push_back(copy);
  return part;
}

std::vector<Ticket> StagedCommunicator::begin_out(const Part& part, std::span<std::byte> host,
                                                  const offload::ComputePoint& after) {
  std::vector<Ticket> copies;
  copies.reserve(part.out.size());
  for (const PartCopy& copy : part.out) {
    copies.push_back(device_.begin_copy_out(host.subspan(copy.at, copy.device.size_bytes()),
                                            copy.device, after));
  }
  return copies;
}

std::vector<Ticket> StagedCommunicator::begin_in(const Part& part, std::span<std::byte> host,
                                                 const offload::ComputePoint& after) {
  std::vector<Ticket> copies;
  copies.reserve(part.in.size());
  for (const PartCopy& copy : part.in) {
    copies.push_back(
        device_.begin_copy_in(copy.device, host.subspan(copy.at, copy.device.size_bytes()), after));
  }
  return copies;
}

}  // namespace

std::unique_ptr<Communicator> make_staged_communicator(std::unique_ptr<Communicator> host,
                                                       const StagingOptions& options) {
  SLUICE_CHECK(host != nullptr, "a staged communicator needs one of host memory");
  SLUICE_CHECK(options.device != nullptr, "a staged communicator needs a device");
  SLUICE_CHECK(options.memory != nullptr, "a staged communicator needs a pool of host memory");
  return std::make_unique<StagedCommunicator>(std::move(host), options);
}

}  // namespace sluice::zero
