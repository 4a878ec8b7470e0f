#include "cuda/cufile_reader.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/base/log.hpp"

namespace sluice::offload::cuda {

namespace {

// As KvikIO cuts reads by default, and enough threads to keep one drive busy with them.
constexpr std::uint64_t kPieceBytes = 4 * kMiB;
constexpr std::size_t kThreads = 4;
// As IoEngine does: a call that is interrupted for ever is an error.
constexpr int kMostRepeats = 1000;

// Whether the read is of whole blocks, to memory that starts at a page.
bool fits(const FileRange& from, DeviceSpan to) {
  const std::uint64_t block = std::max<std::uint64_t>(kPageBytes, from.file->offset_alignment());
  return from.offset_bytes % block == 0 && to.size_bytes() % block == 0 &&
         to.size_bytes() <= from.size_bytes &&
         reinterpret_cast<std::uintptr_t>(to.address()) % kPageBytes == 0;
}

std::string text_of(const CufileRead& got) {
  if (got.result >= 0 || got.result == -1) return "cuFile read";
  return "cuFile read (" + cufile_error_text(static_cast<CUfileOpError>(-got.result)) + ")";
}

}  // namespace

CufileDriver::CufileDriver(CufileApi& files, GpuDevice& device, CompatMode mode) : files_(files) {
  const DeviceGuard guard(*device.api(), device.index());
  constexpr const char* kWhy = "opening cuFile";
  SLUICE_CUFILE(
      files,
      set_parameter_bool(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, mode == CompatMode::allowed),
      kWhy);
  SLUICE_CUFILE(files, driver_open(), kWhy);
}

CufileDriver::~CufileDriver() {
  const CufileResult closed = files_.driver_close();
  if (closed.error == CU_FILE_SUCCESS) return;
  log(LogLevel::error, "closing cuFile: " + cufile_error_text(closed.error));
}

CufileHandle::CufileHandle(CufileApi& files, const nvme::SwapFile& file) : files_(files) {
  SLUICE_CUFILE(files, handle_register(&handle_, file.fd()), file.path());
}

CufileReader::CufileReader(std::shared_ptr<CufileApi> files, GpuDevice& device, CompatMode mode)
    : files_(std::move(files)),
      cuda_(device.api()),
      device_(device.index()),
      driver_(*files_, device, mode),
      stream_(*cuda_, device_),
      // Waiting must not spin: the cores are the optimizer's.
      reached_(*cuda_, device_, cudaEventBlockingSync | cudaEventDisableTiming) {
  for (std::size_t i = 0; i < kThreads; ++i)
    threads_.push_back(std::make_unique<Worker>("direct-read-" + std::to_string(i)));
}

std::string CufileReader::why_not() const {
  MutexLock lock(mutex_);
  return why_not_;
}

void CufileReader::forget_files() {
  MutexLock lock(mutex_);
  handles_.clear();
}

CUfileHandle_t CufileReader::handle_of(const nvme::SwapFile& file) {
  if (const auto known = handles_.find(&file); known != handles_.end())
    return known->second == nullptr ? nullptr : known->second->get();
  std::unique_ptr<CufileHandle>& handle = handles_[&file];
  try {
    SLUICE_CHECK(file.direct(), file.path() + ": " + file.why_buffered());
    const DeviceGuard guard(*cuda_, device_);
    handle = std::make_unique<CufileHandle>(*files_, file);
    return handle->get();
  } catch (const Error& e) {
    log(LogLevel::info, std::string("read through host memory, not by cuFile: ") + e.what());
    if (why_not_.empty()) why_not_ = e.what();
    return nullptr;
  }
}

std::vector<CUfileHandle_t> CufileReader::handles_of(const nvme::StripedFile& file) {
  MutexLock lock(mutex_);
  std::vector<CUfileHandle_t> handles;
  for (const nvme::SwapFile& part : file.parts()) {
    handles.push_back(handle_of(part));
    if (handles.back() == nullptr) return {};
  }
  return handles;
}

// An event of this reader behind the point; a thread waits for it without spinning.
std::shared_ptr<Event> CufileReader::mark_reached(const ComputePoint& after) {
  if (after.event() == nullptr) return nullptr;
  constexpr const char* kWhy = "ordering a direct read";
  const DeviceGuard guard(*cuda_, device_);
  // Given back when the last piece has been read.
  std::shared_ptr<Event> event(new Event(reached_.take()), [this](Event* each) {
    reached_.give_back(std::move(*each));
    delete each;
  });
  SLUICE_CUDA(*cuda_, stream_wait_event(stream_.get(), static_cast<cudaEvent_t>(after.event())),
              kWhy);
  SLUICE_CUDA(*cuda_, event_record(event->get(), stream_.get()), kWhy);
  return event;
}

std::optional<Ticket> CufileReader::begin_read(const FileRange& from, DeviceSpan to,
                                               const ComputePoint& after) {
  if (!fits(from, to)) return std::nullopt;
  const std::vector<CUfileHandle_t> handles = handles_of(*from.file);
  if (handles.empty()) return std::nullopt;
  std::shared_ptr<Event> reached;
  if (std::exception_ptr error = error_of([&] { reached = mark_reached(after); }))
    return Ticket::ended(std::move(error));
  std::vector<Ticket> pieces;
  for (std::uint64_t at = 0; at < to.size_bytes();) {
    const auto there = from.file->layout().first_piece(
        from.offset_bytes + at, std::min<std::uint64_t>(kPieceBytes, to.size_bytes() - at));
    const Piece piece{&from.file->parts()[there.part], handles[there.part], there.offset_bytes,
                      to.subspan(at, there.size_bytes)};
    pieces.push_back(threads_[next_++ % kThreads]->begin(
        [this, piece, reached] { read(piece, reached.get()); }));
    at += there.size_bytes;
  }
  return join(std::move(pieces));
}

void CufileReader::read(const Piece& piece, const Event* reached) const {
  const std::size_t size_bytes = piece.to.size_bytes();
  const auto fail = [&](int error_number, const std::string& what) {
    throw IoError(error_number, what, piece.file->path(), piece.offset_bytes, size_bytes);
  };
  const auto what_for = [&] {
    return "reading " + format_bytes(size_bytes) + " at " + std::to_string(piece.offset_bytes) +
           " of " + piece.file->path() + " into the GPU";
  };
  SLUICE_CUDA(*cuda_, set_device(device_), what_for());
  if (reached != nullptr) SLUICE_CUDA(*cuda_, event_synchronize(reached->get()), what_for());
  std::size_t done_bytes = 0;
  int repeats = 0;
  while (done_bytes < size_bytes) {
    const CufileRead got = files_->read(piece.handle, piece.to.subspan(done_bytes).address(),
                                        size_bytes - done_bytes, piece.offset_bytes + done_bytes);
    if (got.result == 0)
      fail(EIO, "cuFile read (end of file after " + std::to_string(done_bytes) + " bytes)");
    const bool again =
        got.result == -1 && (got.error_number == EINTR || got.error_number == EAGAIN);
    if (got.result < 0 && !(again && ++repeats < kMostRepeats))
      fail(got.result == -1 ? got.error_number : EIO, text_of(got));
    if (got.result < 0) continue;
    done_bytes += static_cast<std::size_t>(got.result);
    repeats = 0;
  }
}

}  // namespace sluice::offload::cuda
