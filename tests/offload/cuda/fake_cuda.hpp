#pragma once
// FakeCuda: the calls of the CUDA runtime on a machine without a GPU. Streams are threads that run
// what they are given in order, so events order things as on a GPU; calls can be made to fail, at
// once or late. Device memory is not readable by the host: touching it crashes, as it would there.
// Threads, streams and events have a device each: an event of one device cannot be recorded in a
// stream of another.

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuda/cuda_api.hpp"
#include "message_of.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/base/worker.hpp"

namespace sluice::offload::test {

using sluice::test::message_of;

// Held by what a stream runs until it is opened; what waits may outlive it.
class Gate {
 public:
  Gate() : opened_(std::make_shared<Ticket>(source_.ticket())) {}
  void open() { source_.complete(); }
  std::function<void()> waiter() const {
    return [opened = opened_] { opened->wait(); };
  }

 private:
  TicketSource source_;
  const std::shared_ptr<const Ticket> opened_;  // shared with the waiters
};

// Thread-safe. Outlives its streams and events.
class FakeCuda final : public cuda::CudaApi {
 public:
  static constexpr std::size_t kMemoryBytes = 64U << 20U;

  FakeCuda() : file_(::memfd_create("fake-gpu", 0)) {
    if (file_ < 0 || ::ftruncate(file_, kMemoryBytes) != 0) throw std::runtime_error("memfd");
    device_ = map(PROT_NONE);
    shown_ = map(PROT_READ | PROT_WRITE);
  }
  ~FakeCuda() override {
    ::munmap(device_, kMemoryBytes);
    ::munmap(shown_, kMemoryBytes);
    ::close(file_);
  }

  // A test sets these before it begins.
  int device_count = 1;
  unsigned device_flags = 0;
  int driver_version = 13000;
  cudaError_t count_error = cudaSuccess;
  // A copy between the device and memory that is not registered blocks its caller until it has run,
  // as the runtime lets it.
  bool pageable_copies_block = false;
  std::function<void()> before_copy = [] {};  // on the stream
  std::function<void()> after_event = [] {};  // on the thread that waited for one
  // The memory behind an address that a driver has reserved, where it is mapped or not; null for
  // other addresses.
  std::function<std::byte*(const void*)> reserved = [](const void*) -> std::byte* {
    return nullptr;
  };

  // The `nth` call of `function` from now on fails; with `lasting`, those after it too.
  void fail(const std::string& function, int nth, cudaError_t error, bool lasting = false) {
    MutexLock lock(mutex_);
    faults_[function] = {calls_[function] + nth, error, lasting};
  }
  // The next copy that a stream runs breaks the device: whatever waits from then on is told.
  void break_at_next_copy() { breaking_ = true; }
  int calls(const std::string& function) {
    MutexLock lock(mutex_);
    return calls_[function];
  }
  std::size_t used_bytes() {
    MutexLock lock(mutex_);
    std::size_t sum = 0;
    for (const auto& [block, size_bytes] : blocks_) sum += size_bytes;
    return sum;
  }
  std::size_t registered_blocks() {
    MutexLock lock(mutex_);
    return registered_.size();
  }

  // Compute work.
  void launch(cudaStream_t stream, std::function<void()> kernel) {
    detach(stream, std::move(kernel));
  }
  // The memory that a kernel sees at an address of the device.
  std::byte* as_device(const void* address) const {
    const auto* at = static_cast<const std::byte*>(address);
    if (std::byte* behind = reserved(at)) return behind;
    return is_block(at) ? shown_ + (at - device_) : const_cast<std::byte*>(at);
  }

  std::string error_name(cudaError_t error) override {
    return "cudaError" + std::to_string(static_cast<int>(error));
  }
  std::string error_text(cudaError_t) override { return "a fault of the test"; }
  void forget_error() override {
    enter("forget_error");
    thread_error = cudaSuccess;
  }
  // As the runtime tells LibTorch on this thread: "not ready", or what a call failed with.
  static cudaError_t last_error() { return thread_error; }
  cuda::Result driver_get_version(int* version) override {
    *version = driver_version;
    return enter("driver_get_version");
  }
  cuda::Result runtime_get_version(int* version) override {
    *version = 13000;
    return enter("runtime_get_version");
  }
  cuda::Result get_device_count(int* count) override {
    *count = device_count;
    return count_error != cudaSuccess ? count_error : enter("get_device_count");
  }
  cuda::Result get_device_properties(cudaDeviceProp* properties, int /*device*/) override {
    std::strcpy(properties->name, "Fake GPU");
    properties->totalGlobalMem = kMemoryBytes;
    properties->major = 9;
    properties->pciBusID = 0x1b;
    return enter("get_device_properties");
  }
  cuda::Result get_device(int* device) override {
    *device = current;
    return enter("get_device");
  }
  cuda::Result set_device(int device) override {
    if (device >= device_count) return cudaErrorInvalidDevice;
    const cudaError_t error = enter("set_device");
    if (error != cudaSuccess) return error;
    current = device;
    use_context();
    return cudaSuccess;
  }
  bool has_context(int device) override {
    MutexLock lock(mutex_);
    return contexts_.count(device) == 1;
  }
  cuda::Result set_device_flags(unsigned flags) override {
    const cudaError_t error = enter("set_device_flags");
    if (error == cudaSuccess) device_flags = flags;
    return error;
  }
  cuda::Result mem_get_info(std::size_t* free_bytes, std::size_t* total_bytes) override {
    *free_bytes = kMemoryBytes - used_bytes();
    *total_bytes = kMemoryBytes;
    return enter_context("mem_get_info");
  }
  // One block after the other: what is freed is not given out again, so that a late use shows.
  cuda::Result malloc(void** block, std::size_t size_bytes) override {
    if (const cudaError_t error = enter_context("malloc"); error != cudaSuccess) return error;
    MutexLock lock(mutex_);
    if (size_bytes > kMemoryBytes - next_) return cudaErrorMemoryAllocation;
    *block = device_ + next_;
    next_ += size_bytes;
    blocks_[*block] = size_bytes;
    return cudaSuccess;
  }
  cuda::Result free(void* block) override {
    use_context();
    MutexLock lock(mutex_);
    return blocks_.erase(block) == 1 ? cudaSuccess : cudaErrorInvalidValue;
  }
  cuda::Result host_register(void* block, std::size_t size_bytes, unsigned /*flags*/) override {
    if (const cudaError_t error = enter_context("host_register"); error != cudaSuccess)
      return error;
    MutexLock lock(mutex_);
    return registered_.emplace(static_cast<std::byte*>(block), size_bytes).second
               ? cudaSuccess
               : cudaErrorHostMemoryAlreadyRegistered;
  }
  cuda::Result host_unregister(void* block) override {
    use_context();
    MutexLock lock(mutex_);
    return registered_.erase(static_cast<std::byte*>(block)) == 1
               ? cudaSuccess
               : cudaErrorHostMemoryNotRegistered;
  }

  cuda::Result stream_create(cudaStream_t* stream, unsigned /*flags*/) override {
    if (const cudaError_t error = enter_context("stream_create"); error != cudaSuccess)
      return error;
    *stream = reinterpret_cast<cudaStream_t>(new Worker("fake-stream"));
    note_device_of(*stream);
    return cudaSuccess;
  }
  cuda::Result stream_destroy(cudaStream_t stream) override {
    delete worker(stream);
    return enter_context("stream_destroy");
  }
  cuda::Result stream_synchronize(cudaStream_t stream) override {
    worker(stream)->begin([] {}).wait();
    return enter("stream_synchronize");
  }
  cuda::Result stream_wait_event(cudaStream_t stream, cudaEvent_t event) override {
    if (const cudaError_t error = enter_context("stream_wait_event"); error != cudaSuccess)
      return error;
    detach(stream, [state = *recorded(event)] { state->wait(); });
    return cudaSuccess;
  }

  cuda::Result event_create(cudaEvent_t* event, unsigned /*flags*/) override {
    if (const cudaError_t error = enter_context("event_create"); error != cudaSuccess) return error;
    auto first = std::make_shared<Recorded>();
    first->set();
    *event = reinterpret_cast<cudaEvent_t>(new std::shared_ptr<Recorded>(std::move(first)));
    note_device_of(*event);
    return cudaSuccess;
  }
  cuda::Result event_destroy(cudaEvent_t event) override {
    use_context();
    delete recorded(event);
    return cudaSuccess;
  }
  cuda::Result event_record(cudaEvent_t event, cudaStream_t stream) override {
    if (const cudaError_t error = enter_context("event_record"); error != cudaSuccess) return error;
    if (device_of(event) != device_of(stream)) return cudaErrorInvalidResourceHandle;
    auto state = std::make_shared<Recorded>();
    *recorded(event) = state;
    detach(stream, [state] { state->set(); });
    return cudaSuccess;
  }
  cuda::Result event_query(cudaEvent_t event) override {
    if (const cudaError_t error = enter("event_query"); error != cudaSuccess) return error;
    if ((*recorded(event))->is_set()) return cudaSuccess;
    return thread_error = cudaErrorNotReady;
  }
  cuda::Result event_synchronize(cudaEvent_t event) override {
    const std::shared_ptr<Recorded> state = *recorded(event);
    state->wait();
    after_event();
    return enter("event_synchronize");
  }
  cuda::Result event_elapsed_time(float* milliseconds, cudaEvent_t begin,
                                  cudaEvent_t end) override {
    const auto elapsed = (*recorded(end))->time() - (*recorded(begin))->time();
    *milliseconds = std::chrono::duration<float, std::milli>(elapsed).count();
    return enter_context("event_elapsed_time");
  }

  cuda::Result memcpy_async(void* to, const void* from, std::size_t size_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) override {
    if (const cudaError_t error = enter_context("memcpy_async"); error != cudaSuccess) return error;
    const bool to_device = kind != cudaMemcpyDeviceToHost;
    const bool from_device = kind != cudaMemcpyHostToDevice;
    if (is_device(to) != to_device || is_device(from) != from_device)
      return cudaErrorInvalidMemcpyDirection;
    detach(stream, [this, to, from, size_bytes] {
      before_copy();
      if (breaking_.exchange(false)) broken_ = true;
      if (!broken_) std::memcpy(as_device(to), as_device(from), size_bytes);
    });
    const void* const host = from_device ? to : from;
    if (pageable_copies_block && to_device != from_device && !is_registered(host))
      worker(stream)->begin([] {}).wait();
    return cudaSuccess;
  }

 private:
  // One recording of an event. Thread-safe.
  class Recorded {
   public:
    void set() {
      MutexLock lock(mutex_);
      time_ = std::chrono::steady_clock::now();
      done_ = true;
      changed_.notify_all();
    }
    bool is_set() {
      MutexLock lock(mutex_);
      return done_;
    }
    void wait() {
      MutexLock lock(mutex_);
      while (!done_) changed_.wait(mutex_);
    }
    std::chrono::steady_clock::time_point time() {
      MutexLock lock(mutex_);
      return time_;
    }

   private:
    Mutex mutex_;
    CondVar changed_;
    bool done_ SLUICE_GUARDED_BY(mutex_) = false;
    std::chrono::steady_clock::time_point time_ SLUICE_GUARDED_BY(mutex_);
  };
  struct Fault {
    int nth = 0;
    cudaError_t error = cudaSuccess;
    bool lasting = false;
  };

  Worker* worker(cudaStream_t stream) {
    return stream == nullptr ? &default_stream_ : reinterpret_cast<Worker*>(stream);
  }
  static std::shared_ptr<Recorded>* recorded(cudaEvent_t event) {
    return reinterpret_cast<std::shared_ptr<Recorded>*>(event);
  }
  // Most calls make a context on the thread's device where it has none.
  void use_context() {
    MutexLock lock(mutex_);
    contexts_.insert(current);
  }
  // A stream or an event belongs to the device that its thread used when it was made.
  void note_device_of(void* made) {
    MutexLock lock(mutex_);
    devices_[made] = current;
  }
  // Null is the default stream of the thread's device.
  int device_of(void* made) {
    MutexLock lock(mutex_);
    return made == nullptr ? current : devices_.at(made);
  }
  std::byte* map(int protection) const {
    void* at = ::mmap(nullptr, kMemoryBytes, protection, MAP_SHARED, file_, 0);
    if (at == MAP_FAILED) throw std::runtime_error("mmap");
    return static_cast<std::byte*>(at);
  }
  bool is_device(const void* address) const {
    return is_block(address) || reserved(address) != nullptr;
  }
  bool is_registered(const void* address) {
    MutexLock lock(mutex_);
    const auto* const at = static_cast<const std::byte*>(address);
    const auto after = registered_.upper_bound(at);
    if (after == registered_.begin()) return false;
    const auto& [block, size_bytes] = *std::prev(after);
    return at < block + size_bytes;
  }
  bool is_block(const void* address) const {
    return address >= device_ && address < device_ + kMemoryBytes;
  }
  // A worker's ticket waits when it is dropped: kept until the stream is past it.
  void detach(cudaStream_t stream, std::function<void()> work) {
    Ticket ticket = worker(stream)->begin(std::move(work));
    MutexLock lock(mutex_);
    detached_.push_back(std::move(ticket));
    std::erase_if(detached_, [](const Ticket& each) { return each.done(); });
  }
  cudaError_t enter_context(const std::string& function) {
    use_context();
    return enter(function);
  }
  cudaError_t enter(const std::string& function) {
    MutexLock lock(mutex_);
    const int nth = ++calls_[function];
    const auto fault = faults_.find(function);
    if (fault != faults_.end() &&
        (nth == fault->second.nth || (fault->second.lasting && nth > fault->second.nth)))
      return thread_error = fault->second.error;
    return broken_ ? cudaErrorIllegalAddress : cudaSuccess;
  }

  inline static thread_local cudaError_t thread_error = cudaSuccess;
  inline static thread_local int current = 0;  // a new thread's device is the first one
  const int file_;
  std::byte* device_ = nullptr;  // what callers see: not readable
  std::byte* shown_ = nullptr;   // the same memory
  std::atomic<bool> breaking_{false};
  std::atomic<bool> broken_{false};
  Mutex mutex_;
  std::map<std::string, int> calls_ SLUICE_GUARDED_BY(mutex_);
  std::map<std::string, Fault> faults_ SLUICE_GUARDED_BY(mutex_);
  std::size_t next_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::map<void*, std::size_t> blocks_ SLUICE_GUARDED_BY(mutex_);
  std::map<const std::byte*, std::size_t> registered_ SLUICE_GUARDED_BY(mutex_);
  std::set<int> contexts_ SLUICE_GUARDED_BY(mutex_);        // devices that have one
  std::map<void*, int> devices_ SLUICE_GUARDED_BY(mutex_);  // of streams and events
  std::vector<Ticket> detached_ SLUICE_GUARDED_BY(mutex_);
  Worker default_stream_{"fake-default"};  // last: it ends before what its work uses
};

}  // namespace sluice::offload::test
