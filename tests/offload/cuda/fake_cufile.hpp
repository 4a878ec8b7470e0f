#pragma once
// FakeCufile: the calls of cuFile over FakeCuda's memory. Calls can be held, cut short and made to
// fail; what is registered or open is counted.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/cufile_api.hpp"
#include "fake_cuda.hpp"
#include "sluice/base/mutex.hpp"

namespace sluice::offload::test {

// Thread-safe.
class FakeCufile final : public cuda::CufileApi {
 public:
  explicit FakeCufile(std::shared_ptr<FakeCuda> gpu) : gpu_(std::move(gpu)) {}

  // A test sets these before it begins. A machine that does not read directly opens and registers
  // only where compatibility mode is allowed.
  std::atomic<bool> reads_directly{true};
  std::atomic<bool> reads_wrong_bytes{false};
  std::atomic<std::size_t> most_bytes{std::numeric_limits<std::size_t>::max()};
  std::function<void()> before_read = [] {};

  // The `nth` call of `function` from now on fails.
  void fail(const std::string& function, int nth, CUfileOpError error) {
    MutexLock lock(mutex_);
    faults_[function] = {calls_[function] + nth, error};
  }
  // The `nth` read from now on answers this.
  void answer_read(int nth, cuda::CufileRead answer) {
    MutexLock lock(mutex_);
    answers_[calls_["read"] + nth] = answer;
  }
  int calls(const std::string& function) {
    MutexLock lock(mutex_);
    return calls_[function];
  }
  int open_drivers() const { return open_drivers_; }
  int open_handles() const { return open_handles_; }

  cuda::CufileResult set_parameter_bool(CUFileBoolConfigParameter_t parameter,
                                        bool value) override {
    if (open_drivers_ > 0) return {CU_FILE_DRIVER_ALREADY_OPEN};
    if (parameter == CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE) allows_compat_ = value;
    return enter("set_parameter_bool");
  }
  cuda::CufileResult driver_open() override {
    const cuda::CufileResult result = enter("driver_open");
    if (result.error != CU_FILE_SUCCESS) return result;
    if (!reads_directly && !allows_compat_) return {CU_FILE_DRIVER_NOT_INITIALIZED};
    ++open_drivers_;
    return {};
  }
  cuda::CufileResult driver_close() override {
    --open_drivers_;
    return enter("driver_close");
  }
  // The descriptor's own file, without direct I/O: short reads go on where they ended.
  cuda::CufileResult handle_register(CUfileHandle_t* handle, int fd) override {
    const cuda::CufileResult result = enter("handle_register");
    if (result.error != CU_FILE_SUCCESS) return result;
    const int own = ::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY | O_CLOEXEC);
    if (own < 0) return {CU_FILE_INVALID_VALUE};
    *handle = new int(own);
    ++open_handles_;
    return {};
  }
  void handle_deregister(CUfileHandle_t handle) override {
    const std::unique_ptr<int> own(static_cast<int*>(handle));
    ::close(*own);
    --open_handles_;
  }
  cuda::CufileRead read(CUfileHandle_t handle, void* device_to, std::size_t size_bytes,
                        std::uint64_t offset_bytes) override {
    {
      MutexLock lock(mutex_);
      if (const auto answer = answers_.find(++calls_["read"]); answer != answers_.end())
        return answer->second;
    }
    before_read();
    std::vector<char> bytes(std::min(size_bytes, most_bytes.load()));
    const ssize_t got = ::pread(*static_cast<int*>(handle), bytes.data(), bytes.size(),
                                static_cast<off_t>(offset_bytes));
    if (got < 0) return {-1, errno};
    if (reads_wrong_bytes && got > 0) bytes[0] = static_cast<char>(bytes[0] + 1);
    std::memcpy(gpu_->as_device(device_to), bytes.data(), static_cast<std::size_t>(got));
    return {got, 0};
  }

 private:
  struct Fault {
    int nth = 0;
    CUfileOpError error = CU_FILE_SUCCESS;
  };

  cuda::CufileResult enter(const std::string& function) {
    MutexLock lock(mutex_);
    const int nth = ++calls_[function];
    const auto fault = faults_.find(function);
    if (fault != faults_.end() && nth == fault->second.nth) return {fault->second.error};
    return {};
  }

  const std::shared_ptr<FakeCuda> gpu_;  // shared with the device
  std::atomic<bool> allows_compat_{true};
  std::atomic<int> open_drivers_{0};
  std::atomic<int> open_handles_{0};
  Mutex mutex_;
  std::map<std::string, int> calls_ SLUICE_GUARDED_BY(mutex_);
  std::map<std::string, Fault> faults_ SLUICE_GUARDED_BY(mutex_);
  std::map<int, cuda::CufileRead> answers_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::offload::test
