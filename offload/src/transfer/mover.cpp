#include "sluice/offload/mover.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/base/threads.hpp"
#include "sluice/offload/buffer_ring.hpp"
#include "sluice/offload/direct_reader.hpp"
#include "sluice/offload/tile_pipeline.hpp"

namespace sluice::offload {

namespace {

// One begin_fetch or begin_store of a file range. The counts belong to the lane's thread.
struct Transfer {
  FileRange range;
  DeviceSpan device;   // only read by a store
  ComputePoint after;  // its copies begin after this
  TicketSource ticket;
  std::uint64_t tiles_left = 0;
  std::exception_ptr error;

  void tile_ended(std::exception_ptr tile_error) {
    if (!error) error = std::move(tile_error);
    if (--tiles_left == 0) ticket.complete(std::move(error));
  }
};

std::uint64_t file_block(const FileRange& range) {
  return std::max<std::uint64_t>(kPageBytes, range.file->offset_alignment());
}

// How a transfer is cut into tiles: at blocks of the file. A write of part of a block reads the
// rest and writes it back, so no two tiles in flight may share a block.
struct Cut {
  std::uint64_t first_bytes = 0;  // up to a block's end
  std::uint64_t further_bytes = 0;

  Cut(const FileRange& range, std::size_t tile_bytes) {
    const std::uint64_t block = file_block(range);
    SLUICE_CHECK(tile_bytes >= block, "the mover's tiles of " + std::to_string(tile_bytes) +
                                          " bytes are smaller than a block of " +
                                          range.file->path() + ", " + std::to_string(block));
    further_bytes = align_down(tile_bytes, block);
    first_bytes = further_bytes - range.offset_bytes % block;
  }
  std::uint64_t tiles(std::uint64_t size_bytes) const {
    return 1 + ceil_div(size_bytes - std::min(size_bytes, first_bytes), further_bytes);
  }
};

// One tile of a transfer.
struct Piece {
  std::uint64_t offset_bytes = 0;  // in the range and in the span alike
  std::size_t size_bytes = 0;
  std::size_t file_bytes =
      0;  // the size, up to the end of the last block where the range allows it

  DeviceSpan of(DeviceSpan device) const { return device.subspan(offset_bytes, size_bytes); }
};

// At most `most_bytes`, which end with a block.
Piece piece_at(const Transfer& transfer, std::uint64_t offset_bytes, std::uint64_t most_bytes) {
  const std::uint64_t left = transfer.device.size_bytes() - offset_bytes;
  Piece piece{offset_bytes, static_cast<std::size_t>(std::min(most_bytes, left)), 0};
  // Whole blocks need no bounce buffer.
  const std::uint64_t begin = transfer.range.offset_bytes + offset_bytes;
  const std::uint64_t whole =
      align_up(begin + piece.size_bytes, file_block(transfer.range)) - begin;
  const bool fits = whole <= transfer.range.size_bytes - offset_bytes;
  piece.file_bytes = fits ? static_cast<std::size_t>(whole) : piece.size_bytes;
  return piece;
}

// The bytes of a fetch that fill whole blocks of the file.
std::uint64_t whole_blocks(const FileRange& range, std::uint64_t size_bytes) {
  return align_down(size_bytes, file_block(range));
}

Tickets only(Ticket ticket) {
  Tickets tickets;
  tickets.push_back(std::move(ticket));
  return tickets;
}

enum class Direction { fetch, store };

// The thread, the tiles and the queue of one direction. The pipeline keeps flowing from one
// transfer to the next: it is drained only while no transfer waits. Thread-safe.
class Lane {
 public:
  Lane(Direction direction, Device& device, nvme::IoEngine& io, MemoryPool& staging,
       const MoverOptions& options, const std::string& name)
      : direction_(direction),
        device_(device),
        io_(io),
        ring_(staging, options.tile_bytes, options.tiles, "tiles of the mover's " + name + " lane"),
        why_unregistered_(ring_.register_with(io)),
        pipeline_(ring_),
        thread_(start_thread("mover-" + name, [this] { run(); })) {}
  // Ends everything begun first.
  ~Lane() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.notify_one();
    }
    thread_.join();
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  const std::string& why_unregistered() const { return why_unregistered_; }
  // Read or written, in whole blocks where the range has room for them.
  std::uint64_t file_bytes() const { return file_bytes_.load(); }

  Ticket begin(const FileRange& range, DeviceSpan device, const ComputePoint& after) {
    auto transfer = std::make_shared<Transfer>();
    transfer->range = range;
    transfer->device = device;
    transfer->after = after;
    transfer->tiles_left = Cut(range, ring_.tile_bytes()).tiles(device.size_bytes());
    Ticket ticket = transfer->ticket.ticket();
    MutexLock lock(mutex_);
    queue_.push_back(std::move(transfer));
    changed_.notify_one();
    return ticket;
  }

 private:
  // Shared by the tile jobs of the transfer; the last one completes its ticket.
  using SharedTransfer = std::shared_ptr<Transfer>;

  void run() {
    bool tiles_in_flight = false;
    for (;;) {
      SharedTransfer transfer;
      {
        MutexLock lock(mutex_);
        while (queue_.empty() && !tiles_in_flight && !stopping_) changed_.wait(mutex_);
        if (queue_.empty() && !tiles_in_flight) return;
        if (!queue_.empty()) {
          transfer = std::move(queue_.front());
          queue_.pop_front();
        }
      }
      if (transfer) {
        push_tiles(transfer);
        tiles_in_flight = true;
      } else {
        tiles_in_flight = pipeline_.step();
      }
    }
  }

  void push_tiles(const SharedTransfer& transfer) {
    const std::uint64_t size_bytes = transfer->device.size_bytes();
    const Cut cut(transfer->range, ring_.tile_bytes());
    for (std::uint64_t at = 0; at < size_bytes;) {
      const Piece piece = piece_at(*transfer, at, at == 0 ? cut.first_bytes : cut.further_bytes);
      at += piece.size_bytes;
      file_bytes_ += piece.file_bytes;
      pipeline_.push(direction_ == Direction::fetch ? fetch_job(transfer, piece)
                                                    : store_job(transfer, piece));
    }
  }

  TileJob fetch_job(const SharedTransfer& transfer, const Piece& piece) {
    TileJob job;
    job.begin_read = [this, transfer, piece](std::span<std::byte> tile) {
      const FileRange& range = transfer->range;
      return only(io_.begin_read(*range.file, range.offset_bytes + piece.offset_bytes,
                                 tile.first(piece.file_bytes)));
    };
    job.begin_write = [this, transfer, piece](std::span<std::byte> tile) {
      return only(device_.begin_copy_in(piece.of(transfer->device), tile.first(piece.size_bytes),
                                        transfer->after));
    };
    job.done = [transfer](std::exception_ptr error) { transfer->tile_ended(std::move(error)); };
    return job;
  }

  TileJob store_job(const SharedTransfer& transfer, const Piece& piece) {
    TileJob job;
    job.begin_read = [this, transfer, piece](std::span<std::byte> tile) {
      return only(device_.begin_copy_out(tile.first(piece.size_bytes), piece.of(transfer->device),
                                         transfer->after));
    };
    job.compute = [piece](std::span<std::byte> tile) {
      // Earlier content of the tile never reaches a file.
      std::memset(tile.data() + piece.size_bytes, 0, piece.file_bytes - piece.size_bytes);
    };
    job.begin_write = [this, transfer, piece](std::span<std::byte> tile) {
      const FileRange& range = transfer->range;
      return only(io_.begin_write(*range.file, range.offset_bytes + piece.offset_bytes,
                                  tile.first(piece.file_bytes)));
    };
    job.done = [transfer](std::exception_ptr error) { transfer->tile_ended(std::move(error)); };
    return job;
  }

  const Direction direction_;
  Device& device_;
  nvme::IoEngine& io_;
  BufferRing ring_;
  const std::string why_unregistered_;
  TilePipeline pipeline_;  // confined to thread_
  std::atomic<std::uint64_t> file_bytes_{0};
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<SharedTransfer> queue_ SLUICE_GUARDED_BY(mutex_);
  bool stopping_ SLUICE_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it starts when all it uses is there
};

void check_size(const TieredBytes& home, std::size_t size_bytes) {
  SLUICE_CHECK(home.size_bytes() >= size_bytes,
               "a transfer of " + std::to_string(size_bytes) + " bytes, but the home on tier " +
                   std::string(name_of(home.tier())) + " has " + std::to_string(home.size_bytes()));
}

}  // namespace

class Mover::Impl {
 public:
  Impl(Device& device, nvme::IoEngine* io, MemoryPool* staging, const MoverOptions& options)
      : device_(device), direct_(options.direct) {
    SLUICE_CHECK((io == nullptr) == (staging == nullptr),
                 "a mover needs both an I/O engine and staging memory, or neither");
    SLUICE_CHECK(options.tile_bytes > 0 && options.tile_bytes % kPageBytes == 0,
                 "the mover's tiles must be a multiple of 4096 bytes, not " +
                     std::to_string(options.tile_bytes));
    SLUICE_CHECK(options.tiles >= 3, "the mover needs at least 3 tiles for each direction, not " +
                                         std::to_string(options.tiles));
    if (io == nullptr) return;
    fetch_.emplace(Direction::fetch, device, *io, *staging, options, "fetch");
    store_.emplace(Direction::store, device, *io, *staging, options, "store");
  }

  ComputePoint mark_compute() { return device_.mark_compute(); }

  Ticket begin_fetch(const TieredBytes& from, DeviceSpan to, const ComputePoint& after) {
    const std::size_t size_bytes = to.size_bytes();
    check_size(from, size_bytes);
    if (to.empty()) return Ticket();
    if (from.tier() == Tier::device)
      return device_.begin_copy_within(to, from.device_memory().first(size_bytes), after);
    to_device_ += size_bytes;
    if (!from.in_memory()) return begin_fetch_of_file(from.range(), to, after);
    return device_.begin_copy_in(to, from.host_memory().first(size_bytes), after);
  }

  Ticket begin_store(DeviceSpan from, const TieredBytes& to, const ComputePoint& after) {
    const std::size_t size_bytes = from.size_bytes();
    check_size(to, size_bytes);
    if (from.empty()) return Ticket();
    if (to.tier() == Tier::device)
      return device_.begin_copy_within(to.device_memory().first(size_bytes), from, after);
    from_device_ += size_bytes;
    if (!to.in_memory()) return lane(store_).begin(to.range(), from, after);
    return device_.begin_copy_out(to.host_memory().first(size_bytes), from, after);
  }

  std::string why_unregistered() const {
    if (!fetch_) return "";
    return fetch_->why_unregistered().empty() ? store_->why_unregistered()
                                              : fetch_->why_unregistered();
  }

  MoverBytes bytes() const {
    return {to_device_.load(), from_device_.load(),
            (fetch_ ? fetch_->file_bytes() : 0) + read_directly_.load(),
            store_ ? store_->file_bytes() : 0};
  }

 private:
  Ticket begin_fetch_of_file(const FileRange& range, DeviceSpan to, const ComputePoint& after) {
    Lane& tiles = lane(fetch_);
    const std::uint64_t whole = direct_ == nullptr ? 0 : whole_blocks(range, to.size_bytes());
    if (whole == 0) return tiles.begin(range, to, after);
    std::optional<Ticket> direct = direct_->begin_read(range, to.first(whole), after);
    if (!direct) return tiles.begin(range, to, after);
    read_directly_ += whole;
    if (whole == to.size_bytes()) return std::move(*direct);
    Tickets both = only(std::move(*direct));
    both.push_back(
        tiles.begin(range.part(whole, range.size_bytes - whole), to.subspan(whole), after));
    return join(std::move(both));
  }

  static Lane& lane(std::optional<Lane>& lane) {
    SLUICE_CHECK(lane.has_value(),
                 "this mover was made without an I/O engine: it cannot move bytes of tier nvme");
    return *lane;
  }

  Device& device_;
  DirectReader* const direct_;
  std::atomic<std::uint64_t> to_device_{0};
  std::atomic<std::uint64_t> from_device_{0};
  std::atomic<std::uint64_t> read_directly_{0};
  std::optional<Lane> fetch_;
  std::optional<Lane> store_;
};

Mover::Mover(Device& device, nvme::IoEngine* io, MemoryPool* staging, const MoverOptions& options)
    : impl_(std::make_unique<Impl>(device, io, staging, options)) {}

Mover::~Mover() = default;

Ticket Mover::begin_fetch(const TieredBytes& from, DeviceSpan to) {
  return impl_->begin_fetch(from, to, impl_->mark_compute());
}

Ticket Mover::begin_fetch(const TieredBytes& from, DeviceSpan to, const ComputePoint& after) {
  return impl_->begin_fetch(from, to, after);
}

Ticket Mover::begin_store(DeviceSpan from, const TieredBytes& to) {
  return impl_->begin_store(from, to, impl_->mark_compute());
}

Ticket Mover::begin_store(DeviceSpan from, const TieredBytes& to, const ComputePoint& after) {
  return impl_->begin_store(from, to, after);
}

std::string Mover::why_unregistered() const {
  return impl_->why_unregistered();
}

MoverBytes Mover::bytes() const {
  return impl_->bytes();
}

}  // namespace sluice::offload
