#include <dlfcn.h>

#include <atomic>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "exchange/exchange_communicator.hpp"
#include "exchange/peers.hpp"
#include "exchange/transport.hpp"
#include "mpi/join_watch.hpp"
#include "mpi/mpi_environment.hpp"
#include "mpi/mpi_library.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/launch_environment.hpp"
#include "sluice/base/log.hpp"
#include "sluice/zero/ranks.hpp"

namespace sluice::zero {

namespace {

// One communicator of MPI for each direction of use, and one for the beats.
enum Channel { compute, gather, control, beats, channel_count };

// MPI in this process. The last user ends it. Thread-safe.
class MpiWorld {
 public:
  explicit MpiWorld(std::unique_ptr<MpiLibrary> library) : library_(std::move(library)) {
    if (!library_->start(channel_count))
      throw Error(std::string("MPI cannot be started: ") + library_->error());
  }
  ~MpiWorld() {
    if (!failed_) {
      library_->finish();
      return;
    }
    // MPI_Finalize would wait for ranks that do not answer.
    log(LogLevel::debug, "MPI is not finalized: not all ranks have ended in order");
    static_cast<void>(library_.release());  // it stays as it is until the process ends
  }
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  MpiLibrary& library() { return *library_; }
  void fail() { failed_ = true; }
  bool has_failed() const { return failed_; }

 private:
  std::unique_ptr<MpiLibrary> library_;
  std::atomic<bool> failed_{false};
};

[[noreturn]] void throw_failed(MpiWorld& world) {
  const std::string why = world.library().error();
  world.fail();
  throw Error("a message to or from another rank has failed: " + why);
}

class MpiTransportMessage final : public Message {
 public:
  MpiTransportMessage(std::shared_ptr<MpiWorld> world, MpiMessage* message)
      : world_(std::move(world)), message_(message) {
    if (message_ == nullptr) throw_failed(*world_);
  }
  ~MpiTransportMessage() override {
    if (done_) return;
    if (world_->has_failed()) {
      static_cast<void>(message_.release());  // MPI is not called any more
    } else {
      message_->cancel();
    }
  }
  MpiTransportMessage(const MpiTransportMessage&) = delete;
  MpiTransportMessage& operator=(const MpiTransportMessage&) = delete;

  bool done() override {
    if (done_) return true;
    if (world_->has_failed()) throw Error("the ranks have failed in another call of this rank");
    const int result = message_->test();
    if (result < 0) throw_failed(*world_);
    done_ = result == 1;
    return done_;
  }

 private:
  const std::shared_ptr<MpiWorld> world_;  // shared by all messages and transports of the process
  std::unique_ptr<MpiMessage> message_;
  bool done_ = false;
};

class MpiTransport final : public Transport {
 public:
  MpiTransport(std::shared_ptr<MpiWorld> world, Channel channel)
      : world_(std::move(world)), channel_(channel) {}

  int rank() const override { return world_->library().rank(); }
  int world_size() const override { return world_->library().world_size(); }
  std::unique_ptr<Message> begin_send(int to, Lane lane,
                                      std::span<const std::byte> bytes) override {
    check();
    return std::make_unique<MpiTransportMessage>(
        world_, world_->library().begin_send(channel_, to, static_cast<int>(lane), bytes.data(),
                                             static_cast<int>(bytes.size())));
  }
  std::unique_ptr<Message> begin_receive(int from, Lane lane, std::span<std::byte> bytes) override {
    check();
    return std::make_unique<MpiTransportMessage>(
        world_, world_->library().begin_receive(channel_, from, static_cast<int>(lane),
                                                bytes.data(), static_cast<int>(bytes.size())));
  }
  void give_up() override { world_->fail(); }

 private:
  void check() const {
    if (world_->has_failed()) throw Error("the ranks have failed in another call of this rank");
  }

  const std::shared_ptr<MpiWorld> world_;
  const Channel channel_;
};

// Why the dynamic linker did not find the library, and what to do.
std::string why_not_found() {
  Dl_info own{};  // the library or program that this code is in
  const bool known = ::dladdr(kMpiLibrary, &own) != 0 && own.dli_fname != nullptr;
  const std::filesystem::path folder =
      known ? std::filesystem::path(own.dli_fname).parent_path() : std::filesystem::path();
  std::error_code error;
  if (known && !std::filesystem::exists(folder / kMpiLibrary, error)) {
    return "there is no " + (folder / kMpiLibrary).string() +
           ". Build the target sluice_mpi, or everything; where it is in another folder, as an "
           "installed package has it, name that in LD_LIBRARY_PATH or in the program's rpath";
  }
  return "it lies beside Sluice's other libraries: name their folder in LD_LIBRARY_PATH or in the "
         "program's rpath";
}

std::unique_ptr<MpiLibrary> load_library() {
  void* library = ::dlopen(kMpiLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = ::dlerror();
    const std::string error = reason == nullptr ? kMpiLibrary : reason;
    const bool is_itself = error.starts_with(std::string(kMpiLibrary) + ":");
    throw Error("MPI cannot be loaded: " + error +
                (is_itself ? "; " + why_not_found()
                           : "; ranks of CPU processes need it: install libopenmpi-dev and "
                             "openmpi-bin, and build again"));
  }
  const auto make = reinterpret_cast<MakeMpiLibrary>(::dlsym(library, kMakeMpiLibrary));
  if (make == nullptr) throw Error(std::string(kMpiLibrary) + " has no " + kMakeMpiLibrary);
  std::unique_ptr<MpiLibrary> made(make());
  if (made == nullptr) throw Error("no memory to start MPI");
  return made;
}

}  // namespace

Ranks join_mpi(const MpiOptions& options) {
  const bool several_hosts = ranks_on_several_hosts();
  if (several_hosts) keep_directions_apart();
  std::unique_ptr<MpiLibrary> library = load_library();
  std::optional<JoinWatch> watch(std::in_place, options.silence_limit, options.stop,
                                 launch_environment());
  const auto world = std::make_shared<MpiWorld>(std::move(library));
  watch.reset();
  if (world->library().world_size() == 1) return make_single_ranks();
  ExchangeOptions exchange;
  if (several_hosts) exchange.messages = {kMessageBytesBetweenHosts, true};
  exchange.executor = options.executor;
  exchange.peers = std::make_shared<Peers>(std::make_unique<MpiTransport>(world, Channel::beats),
                                           options.silence_limit);
  const auto make = [&](Channel channel) {
    return std::make_unique<ExchangeCommunicator>(std::make_unique<MpiTransport>(world, channel),
                                                  exchange);
  };
  return {make(Channel::compute), make(Channel::gather), make(Channel::control)};
}

}  // namespace sluice::zero
