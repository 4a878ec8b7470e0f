#include "core/aio_handle.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <map>
#include <utility>
#include <vector>

#include "core/buffer.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/base/fd.hpp"
#include "sluice/base/threads.hpp"
#include "sluice/base/ticket.hpp"
#include "sluice/nvme/extend_file.hpp"
#include "sluice/nvme/file.hpp"
#include "sluice/nvme/io_backend.hpp"
#include "sluice/nvme/io_engine.hpp"

namespace sluice::python {

namespace py = pybind11;

namespace {

constexpr std::size_t kCompareBytes = std::size_t{1} << 20U;

// Throws StorageError with the first byte that differs.
void compare_with_file(const AioRequest& request, std::span<const std::byte> bytes) {
  const UniqueFd fd(
      SLUICE_SYSCALL(::open(request.path.c_str(), O_RDONLY | O_CLOEXEC), request.path));
  std::vector<std::byte> read(std::min(bytes.size(), kCompareBytes));
  std::size_t done = 0;
  while (done < bytes.size()) {
    const std::size_t wanted = std::min(read.size(), bytes.size() - done);
    const auto offset = static_cast<off_t>(request.offset_bytes + done);
    const auto got = static_cast<std::size_t>(
        SLUICE_SYSCALL(::pread(fd.get(), read.data(), wanted, offset), request.path));
    const auto differs =
        std::mismatch(read.begin(), read.begin() + static_cast<std::ptrdiff_t>(got),
                      bytes.begin() + static_cast<std::ptrdiff_t>(done));
    const auto equal = static_cast<std::size_t>(differs.first - read.begin());
    if (equal < got || got == 0) {
      throw StorageError(request.path, "validation: the file differs from the buffer at byte " +
                                           std::to_string(done + equal) + " of " +
                                           std::to_string(bytes.size()) + " at offset " +
                                           std::to_string(request.offset_bytes));
    }
    done += got;
  }
}

// Writes the last bytes, those in a block that reaches beyond the end of the file, and returns
// their number. The engine would write that block padded and then shorten the file, which could cut
// off what another handle has appended meanwhile.
std::size_t write_tail(const nvme::SwapFile& file, std::uint64_t offset_bytes,
                       std::span<const std::byte> bytes) {
  const std::uint64_t end_bytes = offset_bytes + bytes.size();
  const std::uint64_t block_begin = align_down(end_bytes, file.offset_alignment());
  if (block_begin == end_bytes || file.size_bytes() >= block_begin + file.offset_alignment()) {
    return 0;
  }
  const std::uint64_t begin = std::max(block_begin, offset_bytes);
  const nvme::SwapFile buffered(file.path(), nvme::OpenMode::read_write, nvme::DirectIo::off);
  std::span<const std::byte> left = bytes.subspan(begin - offset_bytes);
  while (!left.empty()) {
    const auto at = static_cast<off_t>(end_bytes - left.size());
    const auto written = static_cast<std::size_t>(
        SLUICE_SYSCALL(::pwrite(buffered.fd(), left.data(), left.size(), at), file.path()));
    if (written == 0) {
      throw IoError(EIO, "write", file.path(), end_bytes - left.size(), left.size(),
                    "the file system wrote 0 bytes");
    }
    left = left.subspan(written);
  }
  return end_bytes - begin;
}

}  // namespace

// The buffer is destroyed with the GIL; by then the ticket has ended.
struct AioHandle::Transfer {
  AioRequest request;
  Buffer buffer;
  nvme::SwapFile file;
  Ticket ticket{};

  void finish() {
    ticket.finish();
    if (request.validate) compare_with_file(request, buffer.bytes());
  }
};

struct AioHandle::State {
  // Memory of a Python object that the handle keeps.
  struct Kept {
    Buffer buffer;
    nvme::Registration registration;
  };

  State(nvme::BackendChoice choice, const nvme::IoEngineOptions& options)
      : why_not_better(std::move(choice.why_not_better)),
        engine(std::move(choice.backend), options) {}

  std::string why_not_better;
  nvme::IoEngine engine;
  std::vector<std::unique_ptr<Transfer>> pending;
  std::map<std::uintptr_t, Kept> kept;
};

AioHandle::AioHandle(const AioOptions& options) : forks_(fork_count()) {
  const py::gil_scoped_release release;
  state_ = std::make_unique<State>(
      nvme::make_backend(nvme::BackendKind::automatic, options.depth, options.threads),
      nvme::IoEngineOptions{.block_bytes = options.block_bytes, .depth = options.depth});
}

// NOLINTNEXTLINE(bugprone-exception-escape): pybind11 throws only without an interpreter.
AioHandle::~AioHandle() {
  if (forks_ != fork_count()) {
    // The threads, the ring and the Python objects are the parent's.
    static_cast<void>(state_.release());
    return;
  }
  {
    const py::gil_scoped_release release;
    for (const std::unique_ptr<Transfer>& transfer : state_->pending) transfer->ticket = Ticket();
    for (auto& [address, kept] : state_->kept) kept.registration = nvme::Registration();
  }
  state_->pending.clear();
  state_->kept.clear();
  const py::gil_scoped_release release;
  state_.reset();
}

AioHandle::State& AioHandle::state() const {
  if (forks_ != fork_count()) {
    throw Error(
        "this aio_handle was made before a fork and works in the parent process only; make a new "
        "one in the child");
  }
  return *state_;
}

std::unique_ptr<AioHandle::Transfer> AioHandle::start(const AioRequest& request,
                                                      const py::object& object) {
  State& mine = state();
  const bool reads = request.direction == AioRequest::Direction::read;
  Buffer buffer(object, reads ? Access::write : Access::read);
  std::unique_ptr<Transfer> transfer;
  const py::gil_scoped_release release;
  // An object for the file first: a Transfer must not be destroyed here, without the GIL.
  nvme::SwapFile file(request.path, reads ? nvme::OpenMode::read_only : nvme::OpenMode::create,
                      nvme::DirectIo::automatic);
  std::span<std::byte> bytes = buffer.bytes();
  if (!reads) {
    nvme::extend_file(file, request.offset_bytes, request.offset_bytes + bytes.size());
    bytes = bytes.first(bytes.size() - write_tail(file, request.offset_bytes, bytes));
  }
  transfer = std::unique_ptr<Transfer>(new Transfer{request, std::move(buffer), std::move(file)});
  transfer->ticket = reads ? mine.engine.begin_read(transfer->file, request.offset_bytes, bytes)
                           : mine.engine.begin_write(transfer->file, request.offset_bytes, bytes);
  return transfer;
}

void AioHandle::begin(const AioRequest& request, const py::object& buffer) {
  std::unique_ptr<Transfer> transfer = start(request, buffer);
  state().pending.push_back(std::move(transfer));
}

void AioHandle::transfer(const AioRequest& request, const py::object& buffer) {
  const std::unique_ptr<Transfer> transfer = start(request, buffer);
  const py::gil_scoped_release release;
  transfer->finish();
}

std::size_t AioHandle::wait() {
  const std::vector<std::unique_ptr<Transfer>> transfers = std::exchange(state().pending, {});
  std::exception_ptr first;
  {
    const py::gil_scoped_release release;
    for (const std::unique_ptr<Transfer>& transfer : transfers) {
      const std::exception_ptr error = error_of([&] { transfer->finish(); });
      if (error && !first) first = error;
    }
  }
  if (first) std::rethrow_exception(first);
  return transfers.size();
}

std::string AioHandle::backend_name() const {
  return std::string(state().engine.backend_name());
}

std::string AioHandle::why_not_better() const {
  return state().why_not_better;
}

void AioHandle::keep_memory(const py::object& object) {
  State& mine = state();
  Buffer buffer(object, Access::write);
  const std::span<std::byte> bytes = buffer.bytes();
  const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
  nvme::Registration registration;
  {
    const py::gil_scoped_release release;
    registration = mine.engine.register_memory(bytes);
  }
  mine.kept.insert_or_assign(address, State::Kept{std::move(buffer), std::move(registration)});
}

bool AioHandle::free_memory(std::uintptr_t address) {
  State& mine = state();
  auto node = mine.kept.find(address);
  if (node == mine.kept.end()) return false;
  const std::span<std::byte> bytes = node->second.buffer.bytes();
  const bool used = std::ranges::any_of(
      mine.pending, [&](const auto& transfer) { return overlap(bytes, transfer->buffer.bytes()); });
  SLUICE_CHECK(!used, "a request in flight uses the tensor; call wait() before you free it");
  auto taken = mine.kept.extract(node);
  {
    const py::gil_scoped_release release;
    taken.mapped().registration = nvme::Registration();
  }
  return true;
}

}  // namespace sluice::python
