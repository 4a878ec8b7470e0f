#include "cuda/cuda_device.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "cuda/copy_lane.hpp"
#include "cuda/cuda_handles.hpp"
#include "cuda/cuda_memory.hpp"
#include "cuda/gpu_clock.hpp"
#include "cuda/pages/cuda_pages.hpp"
#include "device/check_copy.hpp"
#include "memory/mapped_source.hpp"
#include "sluice/base/error.hpp"
#include "sluice/offload/arena_source.hpp"

namespace sluice::offload {
namespace cuda {

namespace {

// LibTorch's kernels expect tensors at multiples of this address.
constexpr std::size_t kGranuleBytes = 512;
constexpr const char* kMarking = "marking a point in the GPU's work";
constexpr const char* kStream = "a stream of another library";

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Why the runtime finds no device, and what to do.
CudaDevices explain(CudaApi& api, cudaError_t error) {
  int driver = 0;
  int runtime = 0;
  const bool known = api.driver_get_version(&driver) == cudaSuccess &&
                     api.runtime_get_version(&runtime) == cudaSuccess;
  if (known && driver == 0)
    return {{}, "no NVIDIA driver is loaded (nvidia-smi says whether it works)"};
  if (error == cudaErrorInsufficientDriver && known) {
    return {{},
            "the NVIDIA driver is too old: it is for CUDA " + version_text(driver) +
                ", this needs CUDA " + version_text(runtime) + "; update the driver"};
  }
  // Read in this one place.
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (error == cudaErrorNoDevice && visible != nullptr) {
    return {{},
            std::string("CUDA_VISIBLE_DEVICES is \"") + visible +
                "\", which leaves no GPU; unset it, or name one that nvidia-smi -L shows"};
  }
  const std::string said = api.error_text(error) + " (" + api.error_name(error) + ")";
  const bool has_none = error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ||
                        error == cudaErrorStubLibrary;  // a file that programs are linked with
  if (has_none) return {{}, "the CUDA runtime finds no GPU: " + said};
  return {{}, "the NVIDIA driver is there, and the CUDA runtime fails: " + said, true};
}

CudaDeviceFacts facts_of(CudaApi& api, int index) {
  cudaDeviceProp properties{};
  SLUICE_CUDA(api, get_device_properties(&properties, index), "looking at the GPU");
  std::array<char, 32> bus_id{};
  std::snprintf(bus_id.data(), bus_id.size(), "%04x:%02x:%02x.0", properties.pciDomainID,
                properties.pciBusID, properties.pciDeviceID);
  return {properties.name, bus_id.data(), properties.major, properties.minor,
          properties.totalGlobalMem};
}

std::unique_ptr<MemorySource> make_memory(const std::shared_ptr<CudaApi>& api,
                                          const CudaDeviceOptions& options,
                                          std::shared_ptr<DriverApi> driver) {
  if (options.page_bytes > 0) {
    SLUICE_CHECK(driver != nullptr, "pages of a GPU's memory need its driver");
    return std::make_unique<MappedSource>(
        make_page_memory({api, std::move(driver), options.index,
                          static_cast<cudaStream_t>(options.compute_stream), options.trace}),
        options.memory_bytes, Tier::device, kGranuleBytes);
  }
  return std::make_unique<ArenaSource>(make_device_source(api, options.index), options.memory_bytes,
                                       Tier::device, kGranuleBytes);
}

// Thread-safe.
class CudaDevice final : public GpuDevice {
 public:
  CudaDevice(std::shared_ptr<CudaApi> api, const CudaDeviceOptions& options,
             const CudaDeviceFacts& facts, std::shared_ptr<DriverApi> driver)
      : api_(std::move(api)),
        index_(options.index),
        name_("cuda:" + std::to_string(index_) + " " + facts.name),
        compute_stream_(static_cast<cudaStream_t>(options.compute_stream)),
        points_(*api_, index_, cudaEventDisableTiming),
        timed_points_(*api_, index_, cudaEventDefault),
        clock_(*api_, index_),
        pool_(Tier::device, options.memory_bytes, make_memory(api_, options, std::move(driver))),
        in_{{*api_, index_, options.host_memory, options.trace, "h2d"},
            {*api_, index_, options.host_memory, options.trace, "h2d"}},
        out_{{*api_, index_, options.host_memory, options.trace, "d2h"},
             {*api_, index_, options.host_memory, options.trace, "d2h"}},
        trace_(options.trace) {}

  const std::shared_ptr<CudaApi>& api() const override { return api_; }
  int index() const override { return index_; }
  std::string_view name() const override { return name_; }
  MemoryPool& memory() override { return pool_; }
  bool host_addressable() const override { return false; }
  std::unique_ptr<MemorySource> make_pinned_source() override {
    return make_registered_source(api_, index_);
  }

  ComputePoint mark_compute() override { return mark(points_); }
  // An error of the GPU is left to what comes next.
  bool has_passed(const ComputePoint& point) override {
    if (point.event() == nullptr) return true;
    const DeviceGuard guard(*api_, index_, std::nothrow);
    if (api_->event_query(static_cast<cudaEvent_t>(point.event())) == cudaSuccess) return true;
    api_->forget_error();  // "not ready" is one
    return false;
  }
  ComputePoint mark_time() override { return mark(timed_points_); }
  std::optional<GpuClock::Time> time_of(const ComputePoint& timed) override {
    const DeviceGuard guard(*api_, index_);
    return clock_.time_of(static_cast<cudaEvent_t>(timed.event()));
  }

  Ticket begin_copy_in(DeviceSpan to, std::span<const std::byte> from,
                       const ComputePoint& after) override {
    check_copy(to.size_bytes(), from.size());
    return begin_copy(in_, {to.address(), from.data(), from.size(), cudaMemcpyHostToDevice}, after);
  }
  Ticket begin_copy_out(std::span<std::byte> to, DeviceSpan from,
                        const ComputePoint& after) override {
    check_copy(to.size(), from.size_bytes());
    return begin_copy(out_, {to.data(), from.address(), to.size(), cudaMemcpyDeviceToHost}, after);
  }
  Ticket begin_copy_within(DeviceSpan to, DeviceSpan from, const ComputePoint& after) override {
    check_copy(to.size_bytes(), from.size_bytes());
    return begin_copy(
        in_, {to.address(), from.address(), to.size_bytes(), cudaMemcpyDeviceToDevice}, after);
  }

  Ticket begin_work(DeviceWork work, const ComputePoint& after) override {
    std::call_once(works_made_,
                   [this] { works_.emplace(*api_, index_, HostMemory::pinned, trace_, "work"); });
    return works_->begin(std::move(work), after);
  }

  CopyCounters counters() const override {
    const CopyLane::Moved in = in_.moved();
    const CopyLane::Moved out = out_.moved();
    return {in.bytes, out.bytes, in.busy_seconds, out.busy_seconds};
  }

 private:
  // The copies of one direction. A stream runs in order, so a copy that waits for compute work
  // holds up the ones behind it. Copies with nothing to wait for have a stream of their own.
  struct Direction {
    CopyLane waiting;
    CopyLane ready;

    CopyLane& lane_of(const ComputePoint& after) {
      return after.event() != nullptr ? waiting : ready;
    }
    CopyLane::Moved moved() const {
      const CopyLane::Moved a = waiting.moved();
      const CopyLane::Moved b = ready.moved();
      return {a.bytes + b.bytes, a.busy_seconds + b.busy_seconds};
    }
  };

  ComputePoint mark(EventPool& pool) {
    const DeviceGuard guard(*api_, index_);
    auto event = std::make_shared<Event>(pool.take());
    SLUICE_CUDA(*api_, event_record(event->get(), compute_stream_), kMarking);
    // The event is recorded again only when no new copy can be made to wait for it. Copies that
    // already wait keep the earlier recording.
    return ComputePoint(
        {event->get(), [&pool, event](void*) { pool.give_back(std::move(*event)); }});
  }

  static Ticket begin_copy(Direction& direction, const Copy& copy, const ComputePoint& after) {
    return copy.size_bytes == 0 ? Ticket() : direction.lane_of(after).begin(copy, after);
  }

  const std::shared_ptr<CudaApi> api_;  // shared with the sources of memory and direct readers
  const int index_;
  const std::string name_;
  const cudaStream_t compute_stream_;
  EventPool points_;
  EventPool timed_points_;
  GpuClock clock_;
  MemoryPool pool_;
  Direction in_;
  Direction out_;
  Trace* const trace_;
  std::once_flag works_made_;
  std::optional<CopyLane> works_;  // made for the first work: most runs have none
};

class GpuStream final : public DeviceStream {
 public:
  GpuStream(std::shared_ptr<CudaApi> api, int index)
      : api_(std::move(api)),
        index_(index),
        stream_(*api_, index_),
        end_(*api_, index, cudaEventDisableTiming) {}

  void* handle() const override { return stream_.get(); }
  void use_device() override { SLUICE_CUDA(*api_, set_device(index_), kStream); }
  void wait_for(const ComputePoint& after) override {
    if (after.event() == nullptr) return;
    SLUICE_CUDA(*api_, stream_wait_event(stream_.get(), static_cast<cudaEvent_t>(after.event())),
                kStream);
  }
  void mark_end() override { SLUICE_CUDA(*api_, event_record(end_.get(), stream_.get()), kStream); }
  bool has_reached_end() override { return has_reached(*api_, end_.get(), kStream); }

 private:
  const std::shared_ptr<CudaApi> api_;  // shared with the device
  const int index_;
  const Stream stream_;
  const Event end_;
};

}  // namespace

CudaDevices find_devices(CudaApi& api) {
  int count = 0;
  const cudaError_t error = api.get_device_count(&count);
  if (error != cudaSuccess || count == 0)
    return explain(api, error == cudaSuccess ? cudaErrorNoDevice : error);
  CudaDevices found;
  try {
    for (int index = 0; index < count; ++index) found.devices.push_back(facts_of(api, index));
  } catch (const CudaError& e) {  // a GPU that is there and does not answer
    found = {{}, e.what(), true};
  }
  return found;
}

std::unique_ptr<Device> make_device(std::shared_ptr<CudaApi> api, const CudaDeviceOptions& options,
                                    std::shared_ptr<DriverApi> driver) {
  const CudaDevices found = find_devices(*api);
  SLUICE_CHECK(!found.devices.empty(), found.why_none);
  const auto count = found.devices.size();
  SLUICE_CHECK(options.index >= 0 && static_cast<std::size_t>(options.index) < count,
               "there is no GPU " + std::to_string(options.index) + ": " + std::to_string(count) +
                   (count == 1 ? " is" : " are") + " visible, counted from 0");
  return std::make_unique<CudaDevice>(std::move(api), options,
                                      found.devices[static_cast<std::size_t>(options.index)],
                                      std::move(driver));
}

void let_waits_sleep(CudaApi& api, int index) {
  const DeviceGuard guard(api, index);
  const cudaError_t refused = api.set_device_flags(cudaDeviceScheduleBlockingSync);
  if (refused != cudaSuccess) api.forget_error();
}

}  // namespace cuda

CudaDevices find_cuda_devices() {
  CudaDevices found;
  const std::unique_ptr<cuda::CudaApi> api = cuda::load_cuda_runtime(found.why_none);
  return api == nullptr ? found : cuda::find_devices(*api);
}

std::uint64_t cuda_free_bytes(int index) {
  std::string why_not;
  const std::unique_ptr<cuda::CudaApi> api = cuda::load_cuda_runtime(why_not);
  SLUICE_CHECK(api != nullptr, "the CUDA runtime cannot be loaded: " + why_not);
  constexpr const char* kWhy = "asking for the GPU's free memory";
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  const cuda::DeviceGuard guard(*api, index);
  SLUICE_CUDA(*api, mem_get_info(&free_bytes, &total_bytes), kWhy);
  return free_bytes;
}

void let_cuda_waits_sleep(int index) {
  std::string why_not;
  const std::unique_ptr<cuda::CudaApi> api = cuda::load_cuda_runtime(why_not);
  SLUICE_CHECK(api != nullptr, "the CUDA runtime cannot be loaded: " + why_not);
  cuda::let_waits_sleep(*api, index);
}

std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options) {
  std::string why_not;
  std::shared_ptr<cuda::CudaApi> api = cuda::load_cuda_runtime(why_not);
  SLUICE_CHECK(api != nullptr, "the CUDA runtime cannot be loaded: " + why_not);
  std::shared_ptr<cuda::DriverApi> driver;
  if (options.page_bytes > 0) {
    driver = cuda::load_cuda_driver(why_not);
    SLUICE_CHECK(driver != nullptr, "the driver's pages were found before: " + why_not);
  }
  return cuda::make_device(std::move(api), options, std::move(driver));
}

CudaPages find_cuda_pages(int index) {
  CudaPages found;
  std::shared_ptr<cuda::CudaApi> api = cuda::load_cuda_runtime(found.why_not);
  std::shared_ptr<cuda::DriverApi> driver =
      api == nullptr ? nullptr : cuda::load_cuda_driver(found.why_not);
  return driver == nullptr
             ? found
             : cuda::find_pages({std::move(api), std::move(driver), index, nullptr, nullptr});
}

std::unique_ptr<DeviceStream> make_device_stream(Device& device) {
  auto* gpu = dynamic_cast<cuda::GpuDevice*>(&device);
  SLUICE_CHECK(gpu != nullptr, std::string(device.name()) + " is no GPU, and has no streams");
  return std::make_unique<cuda::GpuStream>(gpu->api(), gpu->index());
}

}  // namespace sluice::offload
