#pragma once
// CufileReader: a DirectReader by cuFile. A call of cuFile blocks until its bytes have arrived; so
// a large read is cut into pieces, which a few threads read at the same time. Not installed.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuda/cuda_device.hpp"
#include "cuda/cuda_handles.hpp"
#include "cuda/cufile_api.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/base/worker.hpp"
#include "sluice/offload/direct_reader.hpp"

namespace sluice::offload::cuda {

// Whether cuFile may copy through host memory where it cannot read directly.
enum class CompatMode { refused, allowed };

// cuFile's driver, open. Thread-compatible.
class CufileDriver {
 public:
  // Throws CudaError.
  CufileDriver(CufileApi& files, GpuDevice& device, CompatMode mode);
  ~CufileDriver();
  CufileDriver(const CufileDriver&) = delete;
  CufileDriver& operator=(const CufileDriver&) = delete;

 private:
  CufileApi& files_;
};

// A file that is registered with cuFile. Thread-compatible.
class CufileHandle {
 public:
  // Throws CudaError.
  CufileHandle(CufileApi& files, const nvme::SwapFile& file);
  ~CufileHandle() { files_.handle_deregister(handle_); }
  CufileHandle(const CufileHandle&) = delete;
  CufileHandle& operator=(const CufileHandle&) = delete;

  CUfileHandle_t get() const { return handle_; }

 private:
  CufileApi& files_;
  CUfileHandle_t handle_ = nullptr;
};

// Thread-safe.
class CufileReader final : public DirectReader {
 public:
  // The device outlives it. Throws CudaError.
  CufileReader(std::shared_ptr<CufileApi> files, GpuDevice& device, CompatMode mode);

  std::optional<Ticket> begin_read(const FileRange& from, DeviceSpan to,
                                   const ComputePoint& after) override;
  std::string why_not() const override;
  // Deregisters all files; after this a file may be closed before the reader is destroyed. Every
  // ticket must have ended.
  void forget_files();

 private:
  // One thread reads a piece with one loop of calls.
  struct Piece {
    const nvme::SwapFile* file = nullptr;
    CUfileHandle_t handle = nullptr;
    std::uint64_t offset_bytes = 0;
    DeviceSpan to;
  };
  // One handle for each part of the file; empty when a part cannot be read directly.
  std::vector<CUfileHandle_t> handles_of(const nvme::StripedFile& file);
  CUfileHandle_t handle_of(const nvme::SwapFile& file) SLUICE_REQUIRES(mutex_);
  std::shared_ptr<Event> mark_reached(const ComputePoint& after);
  void read(const Piece& piece, const Event* reached) const;

  const std::shared_ptr<CufileApi> files_;  // shared with whoever loaded it
  const std::shared_ptr<CudaApi> cuda_;     // shared with the device
  const int device_;
  const CufileDriver driver_;
  const Stream stream_;  // carries only waits
  EventPool reached_;
  mutable Mutex mutex_;
  // Null: the file cannot be read directly.
  std::map<const nvme::SwapFile*, std::unique_ptr<CufileHandle>> handles_ SLUICE_GUARDED_BY(mutex_);
  std::string why_not_ SLUICE_GUARDED_BY(mutex_);
  std::atomic<std::size_t> next_{0};
  std::vector<std::unique_ptr<Worker>> threads_;  // last: they end before what their work uses
};

}  // namespace sluice::offload::cuda
