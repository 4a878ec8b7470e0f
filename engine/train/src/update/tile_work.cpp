#include "update/tile_work.hpp"

#include <algorithm>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error_of.hpp"

namespace sluice::train {

namespace {

using Bytes = TileWork::Bytes;

// Elements [first, first + count) of memory that holds `all` elements, or nothing.
Bytes part_of(Bytes memory, std::uint64_t first, std::uint64_t count, std::uint64_t all) {
  const std::uint64_t element_bytes = memory.size() / all;
  return memory.subspan(first * element_bytes, count * element_bytes);
}

// The memory of a task, by part, and its pieces.
class TilePieces {
 public:
  TilePieces(const TilePlacement& placement, TileTask task)
      : task_(std::move(task)),
        states_(placement.states(task_.range, task_.tile)),
        piece_elements_(task_.work->whole_tiles ? placement.tile_elements()
                                                : plan::kPieceElements) {
    if (work().read_gradient) gradient_ = placement.gradient(task_.range, task_.tile);
    if (work().write_weight) weight_ = placement.weight(task_.range, task_.tile);
    const StateHome& home = placement.home(task_.range.unit);
    for (std::size_t i = 0; i < home.size(); ++i) {
      if (!includes(work().write_states, home[i])) continue;
      for (std::size_t at = 0; at < states_[i].size(); at += offload::kChecksumChunkBytes)
        chunks_.push_back({i, at});
    }
  }

  const TileWork& work() const { return *task_.work; }
  const TileTask& task() const { return task_; }
  std::size_t pieces() const {
    return static_cast<std::size_t>(ceil_div(task_.range.count, piece_elements_));
  }
  std::size_t chunks() const { return chunks_.size(); }

  // The last part: a moment if the optimizer has one.
  const void* memory_of(std::size_t piece) const {
    const auto last =
        std::find_if(states_.rbegin(), states_.rend(), [](Bytes part) { return !part.empty(); });
    const TileRange range = range_of(piece);
    if (last == states_.rend()) return nullptr;
    return part(*last, range).data();
  }

  void compute(std::size_t piece) const {
    const TileRange range = range_of(piece);
    StateSpans states;
    for (std::size_t i = 0; i < states.size(); ++i) states[i] = part(states_[i], range);
    work().compute(range, states, part(gradient_, range), part(weight_, range));
  }

  void resize(StateChecksums& checksums) const {
    for (std::vector<std::uint64_t>& of_part : checksums) of_part.clear();
    for (const Chunk& chunk : chunks_) checksums[chunk.part].push_back(0);
  }
  void take_checksum(std::size_t index, StateChecksums& checksums) const {
    const Chunk& chunk = chunks_[index];
    const Bytes all = states_[chunk.part];
    const std::size_t size =
        std::min<std::size_t>(offload::kChecksumChunkBytes, all.size() - chunk.offset_bytes);
    checksums[chunk.part][chunk.offset_bytes / offload::kChecksumChunkBytes] =
        offload::checksum_of(all.subspan(chunk.offset_bytes, size));
  }

 private:
  struct Chunk {
    std::size_t part;
    std::size_t offset_bytes;
  };
  TileRange range_of(std::size_t piece) const {
    TileRange range =
        tile_at(task_.range.unit, piece * piece_elements_, task_.range.count, piece_elements_);
    range.begin += task_.range.begin;
    return range;
  }
  Bytes part(Bytes memory, const TileRange& range) const {
    return part_of(memory, range.begin - task_.range.begin, range.count, task_.range.count);
  }

  const TileTask task_;
  const StateSpans states_;
  Bytes gradient_, weight_;
  const std::uint64_t piece_elements_;
  std::vector<Chunk> chunks_;  // of all parts that go to the store
};

using Ended = std::function<void(std::exception_ptr)>;

void begin_checksums(PieceQueue& queue, std::shared_ptr<const TilePieces> pieces,
                     StateChecksums& checksums, Ended ended) {
  pieces->resize(checksums);
  if (pieces->chunks() == 0) return ended(nullptr);
  const TileTask& task = pieces->task();
  PieceLoop loop{.priority = task.range.unit,
                 .count = pieces->chunks(),
                 .memory_of = {},
                 .body = {},
                 .ended = std::move(ended),
                 .what = "checksums",
                 .subject = task.unit_name};
  loop.body = [pieces = std::move(pieces), &checksums](std::size_t chunk) {
    pieces->take_checksum(chunk, checksums);
  };
  queue.add(std::move(loop));
}

}  // namespace

void begin_pieces(PieceQueue& queue, const TilePlacement& placement, TileTask task,
                  StateChecksums& checksums, Ended ended) {
  const auto pieces = std::make_shared<const TilePieces>(placement, std::move(task));
  if (!pieces->work().compute || pieces->pieces() == 0)
    return begin_checksums(queue, pieces, checksums, std::move(ended));
  PieceLoop loop;
  loop.priority = pieces->task().range.unit;
  loop.count = pieces->pieces();
  loop.memory_of = [pieces](std::size_t piece) { return pieces->memory_of(piece); };
  loop.body = [pieces](std::size_t piece) { pieces->compute(piece); };
  loop.ended = [&queue, &checksums, pieces,
                ended = std::move(ended)](const std::exception_ptr& error) {
    if (error) return ended(error);
    const std::exception_ptr failed =
        error_of([&] { begin_checksums(queue, pieces, checksums, ended); });
    if (failed) ended(failed);
  };
  loop.what = pieces->work().what;
  loop.subject = pieces->task().unit_name;
  queue.add(std::move(loop));
}

bool includes_uncached(TileWork::Parts parts) {
  return parts == TileWork::Parts::uncached || parts == TileWork::Parts::all;
}

bool includes(TileWork::Parts parts, const PartHome& home) {
  if (!home.shard || parts == TileWork::Parts::none) return false;
  if (parts == TileWork::Parts::all) return true;
  const bool cached = home.place != plan::PartPlace::tile;
  return cached == (parts == TileWork::Parts::cached);
}

UnitCountdown::UnitCountdown(std::size_t tiles, TileWork work)
    : work_(std::move(work)), without_weights_(tiles), left_(tiles) {}

std::exception_ptr UnitCountdown::start() {
  MutexLock lock(mutex_);
  if (!std::exchange(started_, true) && work_.start) start_error_ = work_.start();
  return start_error_;
}

void UnitCountdown::note(const std::exception_ptr& error) {
  if (!first_error_) first_error_ = error;
}

void UnitCountdown::weights_of_one(const std::exception_ptr& error) {
  std::exception_ptr first_error;
  {
    MutexLock lock(mutex_);
    note(error);
    if (--without_weights_ > 0 || !work_.weights_current) return;
    first_error = first_error_;
    told_ = first_error != nullptr;
  }
  work_.weights_current(first_error);
}

// The last call has the countdown for itself.
void UnitCountdown::end_one(const std::exception_ptr& error) {
  std::exception_ptr first_error;
  bool told = false;
  {
    MutexLock lock(mutex_);
    note(error);
    if (--left_ > 0) return;
    first_error = first_error_;
    told = told_;
  }
  if (!first_error && work_.finish) first_error = error_of(work_.finish);
  if (work_.ended) work_.ended(first_error);
  source_.complete(told ? nullptr : first_error);
}

void TileEnd::weights_current() {
  if (!std::exchange(current_, true)) countdown_->weights_of_one(nullptr);
}

void TileEnd::end(const std::exception_ptr& error) {
  if (!current_) countdown_->weights_of_one(error);
  countdown_->end_one(error);
}

}  // namespace sluice::train
