#include "nccl/nccl_communicator.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "call/pause.hpp"
#include "nccl/rank_notes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/base/time/elapsed.hpp"
#include "sluice/base/worker.hpp"
#include "sluice/offload/cuda_device.hpp"

namespace sluice::zero {

namespace {

using Clock = std::chrono::steady_clock;
using offload::DeviceSpan;

constexpr std::chrono::seconds kNotesLook{1};
constexpr std::chrono::seconds kClosing{5};

ncclDataType_t type_of(Element element) {
  switch (element) {
    case Element::fp32:
      return ncclFloat32;
    case Element::bf16:
      return ncclBfloat16;
    case Element::fp16:
      return ncclFloat16;
    case Element::fp64:
      return ncclFloat64;
    case Element::bytes:
      break;
  }
  return ncclUint8;
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclApi> api, const NcclOptions& options)
      : api_(std::move(api)),
        options_(options),
        notes_(*options.store, options.name, options.rank, options.world_size),
        stream_(offload::make_device_stream(*options.device)),
        met_(options.device->memory().allocate(sizeof(std::int32_t), "a barrier of ranks")),
        worker_("nccl-" + std::to_string(options.rank)) {
    worker_.begin([this] { join_ranks(); }).finish();
  }
  ~NcclCommunicator() override {
    if (under_way_ > 0) abort("its communicator was destroyed during a call");
    worker_.begin([this] { close(); }).wait();
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const override { return options_.rank; }
  int world_size() const override { return options_.world_size; }
  bool on_device() const override { return true; }

  Ticket begin(const HostCall& call) override {
    if (call.operation != Operation::barrier) return Communicator::begin(call);
    return begin(DeviceCall{call, {}, {}, {}});
  }
  Ticket begin(const DeviceCall& call) override {
    ++under_way_;
    return worker_.begin([this, call] {
      const std::exception_ptr error = error_of([&] { run(call); });
      --under_way_;
      if (error) std::rethrow_exception(error);
    });
  }
  void abort(const AbortReason& why) override {
    MutexLock lock(mutex_);
    if (!why_aborted_) why_aborted_ = why;
    // Tells the others, also when no call is under way.
    announced_.push_back(worker_.begin([this] { announce_abort(); }));
  }
  CommunicatorCounters counters() const override { return counters_.counters(); }
  void observe(CallObserver observer) override { counters_.observe(std::move(observer)); }

 private:
  void join_ranks();
  void run(const DeviceCall& call);
  void issue(const DeviceCall& call);
  void issue_parts(const DeviceCall& call);
  void settle();
  void wait_until(const std::function<bool()>& is_done);
  void look_at_notes();
  [[noreturn]] void break_off(const std::exception_ptr& error);
  void announce_abort();
  void close();
  void check(ncclResult_t result, const char* call);
  void count(const DeviceCall& call, double seconds);
  std::string cannot_complete() const {
    return "rank " + std::to_string(rank()) + " cannot complete " + doing_;
  }
  std::optional<AbortReason> why_aborted() {
    MutexLock lock(mutex_);
    return why_aborted_;
  }

  const std::shared_ptr<NcclApi> api_;  // shared by the communicators of a process
  const NcclOptions options_;
  CallCounters counters_;
  std::atomic<int> under_way_{0};
  Mutex mutex_;
  std::optional<AbortReason> why_aborted_ SLUICE_GUARDED_BY(mutex_);
  std::vector<Ticket> announced_ SLUICE_GUARDED_BY(mutex_);  // kept, since they block

  // Used by the worker's thread.
  RankNotes notes_;
  const std::unique_ptr<offload::DeviceStream> stream_;
  const offload::Buffer met_;  // memory of barriers
  ncclComm_t comm_ = nullptr;  // null: before the start, and once it is aborted
  std::string doing_ = "the start of NCCL";
  std::optional<AbortReason> broken_;  // no call can be made any more
  std::uint64_t calls_ = 0;
  Clock::time_point begun_at_;

  Worker worker_;  // last: its tasks use the rest
};

void NcclCommunicator::check(ncclResult_t result, const char* call) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  throw Error(cannot_complete() + ": " + call + ": " + api_->error_text(result, comm_));
}

void NcclCommunicator::join_ranks() {
  begun_at_ = Clock::now();
  try {
    stream_->use_device();
    ncclUniqueId id{};
    if (rank() == 0) {
      check(api_->get_unique_id(&id), "ncclGetUniqueId");
      notes_.give_id(std::string(id.internal, sizeof(id.internal)));
    } else {
      const std::string text = notes_.take_id(options_.call_limit);
      SLUICE_CHECK(text.size() == sizeof(id.internal), "the id of NCCL is damaged");
      std::memcpy(id.internal, text.data(), text.size());
    }
    notes_.has_joined();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // else a rank that does not come is waited for without end
    check(api_->init_rank(&comm_, world_size(), id, rank(), &config), "ncclCommInitRankConfig");
    settle();
  } catch (const std::exception& error) {
    // The others would wait for this rank until their limit.
    static_cast<void>(error_of([&] { notes_.has_aborted(error.what()); }));
    break_off(std::current_exception());
  }
}

void NcclCommunicator::run(const DeviceCall& call) {
  const std::size_t input_bytes = call.input.size_bytes();
  const std::size_t output_bytes = call.output.size_bytes();
  doing_ = text_of(call, input_bytes, output_bytes);
  if (broken_) broken_->raise(cannot_complete() + ": ");
  const std::string mistake = find_mistake(call, input_bytes, output_bytes, rank(), world_size());
  SLUICE_CHECK(mistake.empty(), "rank " + std::to_string(rank()) + ": " + mistake);
  ++calls_;
  begun_at_ = Clock::now();
  try {
    stream_->use_device();
    stream_->wait_for(call.after);
    check(api_->group_start(), "ncclGroupStart");
    // A group that was begun is ended, whatever happens in it.
    const std::exception_ptr error = error_of([&] { issue(call); });
    const ncclResult_t ended = api_->group_end();
    if (error) std::rethrow_exception(error);
    check(ended, "ncclGroupEnd");
    settle();
    stream_->mark_end();
    wait_until([this] { return stream_->has_reached_end(); });
  } catch (...) {
    break_off(std::current_exception());
  }
  count(call, seconds_since(begun_at_));
}

void NcclCommunicator::issue(const DeviceCall& call) {
  const ncclDataType_t type = type_of(call.element);
  const DeviceSpan all = call.output;
  const std::size_t shard_bytes = all.size_bytes() / static_cast<std::size_t>(world_size());
  const std::size_t count = all.size_bytes() / size_of(call.element);
  const auto shard = [&] {
    return all.subspan(static_cast<std::size_t>(rank()) * shard_bytes, shard_bytes).address();
  };
  void* const stream = stream_->handle();
  const NcclMemory in_place{all.address(), all.address(), count, type, call.root};
  switch (call.operation) {
    case Operation::all_gather:
      return check(api_->all_gather({shard(), all.address(), shard_bytes, type, 0}, comm_, stream),
                   "ncclAllGather");
    case Operation::reduce_scatter:
      return check(api_->reduce_scatter(
                       {all.address(), shard(), shard_bytes / size_of(call.element), type, 0},
                       comm_, stream),
                   "ncclReduceScatter");
    case Operation::all_reduce:
      return check(api_->all_reduce(in_place, comm_, stream), "ncclAllReduce");
    case Operation::broadcast:
      return check(api_->broadcast(in_place, comm_, stream), "ncclBroadcast");
    case Operation::reduce:
      return check(api_->reduce(in_place, comm_, stream), "ncclReduce");
    case Operation::barrier: {
      void* const memory = met_.device_span().address();
      return check(api_->all_reduce({memory, memory, 1, ncclInt32, 0}, comm_, stream),
                   "ncclAllReduce");
    }
    default:
      issue_parts(call);
  }
}

// send, receive, scatter and gather are messages between two ranks; the root sends to itself too.
void NcclCommunicator::issue_parts(const DeviceCall& call) {
  void* const stream = stream_->handle();
  const auto send = [&](DeviceSpan part, int to) {
    check(api_->send({part.address(), nullptr, part.size_bytes(), ncclUint8, to}, comm_, stream),
          "ncclSend");
  };
  const auto receive = [&](DeviceSpan part, int from) {
    check(
        api_->receive({nullptr, part.address(), part.size_bytes(), ncclUint8, from}, comm_, stream),
        "ncclRecv");
  };
  const bool scatters = call.operation == Operation::scatter;
  const bool gathers = call.operation == Operation::gather;
  if (rank() == call.root && (scatters || gathers)) {
    const std::size_t shard = scatters ? call.output.size_bytes() : call.input.size_bytes();
    for (int other = 0; other < world_size(); ++other) {
      const std::size_t begin = static_cast<std::size_t>(other) * shard;
      if (scatters) send(call.input.subspan(begin, shard), other);
      if (gathers) receive(call.output.subspan(begin, shard), other);
    }
  }
  if (call.operation == Operation::send || gathers) send(call.input, call.root);
  if (call.operation == Operation::receive || scatters) receive(call.output, call.root);
}

// A call of NCCL that does not block goes on for a while after it has returned.
void NcclCommunicator::settle() {
  wait_until([this] {
    ncclResult_t state = ncclSuccess;
    check(api_->async_error(comm_, &state), "ncclCommGetAsyncError");
    check(state, "an earlier call of NCCL");
    return state != ncclInProgress;
  });
}

void NcclCommunicator::wait_until(const std::function<bool()>& is_done) {
  auto next_look = Clock::now() + kNotesLook;
  const auto waited_since = Clock::now();
  while (!is_done()) {
    const auto now = Clock::now();
    if (const std::optional<AbortReason> why = why_aborted())
      why->raise(cannot_complete() + ": aborted: ");
    ncclResult_t state = ncclSuccess;
    check(api_->async_error(comm_, &state), "ncclCommGetAsyncError");
    check(state, "an earlier call of NCCL");
    if (now >= next_look) {
      look_at_notes();
      next_look = now + kNotesLook;
    }
    pause_between_looks(now - waited_since);
  }
}

void NcclCommunicator::look_at_notes() {
  if (const std::optional<AbortReason> aborted = notes_.find_abort())
    throw RankFailure(aborted->kind, aborted->text + "; " + cannot_complete());
  if (const std::string end = notes_.find_end(calls_); !end.empty())
    throw Error(end + "; " + cannot_complete());
  const std::chrono::duration<double> elapsed = Clock::now() - begun_at_;
  if (elapsed < options_.call_limit) return;
  const std::string others = calls_ == 0 ? notes_.find_missing() : notes_.ask_all(doing_);
  throw Error(cannot_complete() + " within " + std::to_string(options_.call_limit.count()) + " s" +
              others);
}

// The work on the stream ends by the abort, so buffers of the call are free when this throws.
void NcclCommunicator::break_off(const std::exception_ptr& error) {
  if (comm_ != nullptr) {
    const ncclResult_t aborted = api_->abort(std::exchange(comm_, nullptr));
    if (aborted != ncclSuccess) log(LogLevel::debug, "ncclCommAbort has failed");
  }
  broken_.emplace(error);
  std::rethrow_exception(error);
}

void NcclCommunicator::announce_abort() {
  const AbortReason why = *why_aborted();
  if (!broken_) {
    broken_ = why;
    broken_->text = "aborted: " + why.text;
  }
  if (error_of([&] { notes_.has_aborted(why); }))
    log(LogLevel::warn, "the other ranks cannot be told of an abort");
}

void NcclCommunicator::close() {
  const std::exception_ptr unreachable = error_of([&] { notes_.has_left(calls_); });
  if (unreachable) log(LogLevel::debug, "the other ranks cannot be told that this one has left");
  if (comm_ == nullptr) return;
  ncclResult_t state = api_->finalize(comm_);
  const auto end = Clock::now() + kClosing;
  while (state == ncclInProgress && Clock::now() < end) {
    if (api_->async_error(comm_, &state) != ncclSuccess) break;
    pause_between_looks(kClosing);
  }
  const ncclResult_t closed = state == ncclSuccess ? api_->destroy(comm_) : api_->abort(comm_);
  if (closed != ncclSuccess) log(LogLevel::debug, "NCCL has not ended in order");
}

// Payload as an exchange between pairs would move it; NCCL chooses its own ways.
void NcclCommunicator::count(const DeviceCall& call, double seconds) {
  const auto others = static_cast<std::uint64_t>(world_size() - 1);
  const std::uint64_t in = call.input.size_bytes();
  const std::uint64_t out = call.output.size_bytes();
  const std::uint64_t shard = out / (others + 1);
  const bool is_root = rank() == call.root;
  CallCounts one{call.operation, std::max(in, out), 1, 0, 0, seconds};
  switch (call.operation) {
    case Operation::all_gather:
    case Operation::reduce_scatter:
      one.sent_bytes = one.received_bytes = others * shard;
      break;
    case Operation::all_reduce:
      one.sent_bytes = one.received_bytes = 2 * others * shard;
      break;
    case Operation::broadcast:
    case Operation::scatter:
      (is_root ? one.sent_bytes : one.received_bytes) = is_root ? others * out : out;
      break;
    case Operation::reduce:
      (is_root ? one.received_bytes : one.sent_bytes) = is_root ? others * out : out;
      break;
    case Operation::gather:
      (is_root ? one.received_bytes : one.sent_bytes) = is_root ? others * in : in;
      break;
    case Operation::send:
      one.sent_bytes = in;
      break;
    case Operation::receive:
      one.received_bytes = out;
      break;
    case Operation::barrier:
      break;
  }
  counters_.add(one, call.label);
}

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(std::shared_ptr<NcclApi> api,
                                                     const NcclOptions& options) {
  SLUICE_CHECK(options.device != nullptr && options.store != nullptr && options.world_size >= 1 &&
                   options.rank >= 0 && options.rank < options.world_size,
               "rank " + std::to_string(options.rank) + " of " +
                   std::to_string(options.world_size) + " needs a device and a store");
  return std::make_unique<NcclCommunicator>(std::move(api), options);
}

std::string find_why_no_nccl() {
  std::string why_not;
  return load_nccl(why_not) == nullptr ? "NCCL cannot be loaded: " + why_not : "";
}

std::unique_ptr<Communicator> make_nccl_communicator(const NcclOptions& options) {
  std::string why_not;
  std::shared_ptr<NcclApi> api = load_nccl(why_not);
  if (api == nullptr) throw Error("NCCL cannot be loaded: " + why_not);
  return make_nccl_communicator(std::move(api), options);
}

}  // namespace sluice::zero
