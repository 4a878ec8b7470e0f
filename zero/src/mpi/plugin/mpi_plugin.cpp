// libsluice_mpi.so: MpiLibrary over the MPI that this was built with.

#include <mpi.h>

#include <array>
#include <chrono>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "mpi/mpi_library.hpp"

namespace sluice::zero {

namespace {

// By thread: several threads call at once.
thread_local std::string last_error;

bool succeeded(int result, const char* call) {
  if (result == MPI_SUCCESS) return true;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(result, text.data(), &length) != MPI_SUCCESS) length = 0;
  last_error =
      std::string(call) + ": " + std::string(text.data(), static_cast<std::size_t>(length));
  return false;
}

// The messages of a call that is given up share one second.
bool may_wait_for_cancelled() {
  using Clock = std::chrono::steady_clock;
  constexpr auto kAll = std::chrono::seconds(1);
  constexpr auto kAnotherCall = std::chrono::seconds(10);
  thread_local Clock::time_point begin;
  const Clock::time_point now = Clock::now();
  if (now - begin > kAnotherCall) begin = now;
  return now - begin < kAll;
}

class Pending final : public MpiMessage {
 public:
  MPI_Request request = MPI_REQUEST_NULL;

  int test() override {
    int done = 0;
    if (!succeeded(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test")) return -1;
    return done;
  }
  void cancel() override {
    if (request == MPI_REQUEST_NULL) return;
    // A failure leaves the request to the end of the process.
    static_cast<void>(MPI_Cancel(&request));
    // A message that has met its other half is not cancelled, and goes on to write the caller's
    // memory: until its end, unless the other rank is gone.
    while (test() == 0 && request != MPI_REQUEST_NULL && may_wait_for_cancelled())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // polls MPI
    if (request != MPI_REQUEST_NULL) static_cast<void>(MPI_Request_free(&request));
  }
};

class Mpi final : public MpiLibrary {
 public:
  bool start(int channels) override {
    int initialized = 0;
    int level = MPI_THREAD_SINGLE;
    if (!succeeded(MPI_Initialized(&initialized), "MPI_Initialized")) return false;
    owns_mpi_ = initialized == 0;
    if (owns_mpi_) {
      if (!succeeded(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level),
                     "MPI_Init_thread"))
        return false;
    } else if (!succeeded(MPI_Query_thread(&level), "MPI_Query_thread")) {
      return false;
    }
    if (level < MPI_THREAD_MULTIPLE) {
      last_error =
          "this MPI library gives no MPI_THREAD_MULTIPLE, which several communicators need";
      return false;
    }
    for (int channel = 0; channel < channels; ++channel) {
      MPI_Comm communicator = MPI_COMM_NULL;
      if (!succeeded(MPI_Comm_dup(MPI_COMM_WORLD, &communicator), "MPI_Comm_dup")) return false;
      // Else a failed call ends the process without a word of ours.
      if (!succeeded(MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN),
                     "MPI_Comm_set_errhandler"))
        return false;
      channels_.push_back(communicator);
    }
    return succeeded(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank") &&
           succeeded(MPI_Comm_size(MPI_COMM_WORLD, &world_size_), "MPI_Comm_size");
  }
  void finish() override {
    if (!owns_mpi_) return;
    static_cast<void>(MPI_Finalize());
  }
  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }

  MpiMessage* begin_send(int channel, int to, int tag, const void* bytes, int size_bytes) override {
    auto* message = new (std::nothrow) Pending;
    return begun(message, message == nullptr ||
                              succeeded(MPI_Isend(bytes, size_bytes, MPI_BYTE, to, tag,
                                                  communicator(channel), &message->request),
                                        "MPI_Isend"));
  }
  MpiMessage* begin_receive(int channel, int from, int tag, void* bytes, int size_bytes) override {
    auto* message = new (std::nothrow) Pending;
    return begun(message, message == nullptr ||
                              succeeded(MPI_Irecv(bytes, size_bytes, MPI_BYTE, from, tag,
                                                  communicator(channel), &message->request),
                                        "MPI_Irecv"));
  }
  const char* error() const override { return last_error.c_str(); }

 private:
  MPI_Comm communicator(int channel) const { return channels_[static_cast<std::size_t>(channel)]; }
  static MpiMessage* begun(Pending* message, bool success) {
    if (message == nullptr) last_error = "no memory for a message";
    if (success) return message;
    delete message;
    return nullptr;
  }

  bool owns_mpi_ = false;
  int rank_ = 0;
  int world_size_ = 1;
  std::vector<MPI_Comm> channels_;
};

}  // namespace

}  // namespace sluice::zero

extern "C" __attribute__((visibility("default"))) sluice::zero::MpiLibrary*
sluice_make_mpi_library() {
  return new (std::nothrow) sluice::zero::Mpi;
}
