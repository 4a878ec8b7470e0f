#include "sluice/base/piece_queue.hpp"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "numa.hpp"
#include "sluice/base/error.hpp"

namespace sluice {

// A loop with pieces that have not ended. Guarded by the queue's mutex, except `loop`.
struct PieceQueue::Active {
  struct List {
    std::vector<std::size_t> pieces;
    std::size_t next = 0;
  };
  PieceLoop loop;
  std::vector<List> lists;  // one for each node, the last for unknown nodes; empty: in order
  std::size_t untaken = 0;
  std::size_t left = 0;  // not ended
  std::size_t error_index = SIZE_MAX;
  std::exception_ptr error;

  // The next piece on `node`, or else on the nodes after it.
  std::size_t take(int node) {
    const std::size_t in_order = loop.count - untaken--;
    for (std::size_t k = 0; k < lists.size(); ++k) {
      List& list = lists[(static_cast<std::size_t>(node) + k) % lists.size()];
      if (list.next < list.pieces.size()) return list.pieces[list.next++];
    }
    return in_order;
  }
};

PieceQueue::PieceQueue(Executor& executor, TraceRow row)
    : PieceQueue(executor, machine_numa(), row) {}

PieceQueue::PieceQueue(Executor& executor, const Numa& numa, TraceRow row)
    : executor_(executor), numa_(numa), row_(row) {}

PieceQueue::~PieceQueue() {
  assert(empty());
}

void PieceQueue::add(PieceLoop loop) {
  SLUICE_CHECK(loop.count > 0, "a loop without pieces");
  const auto active = std::make_shared<Active>();
  active->untaken = active->left = loop.count;
  if (numa_.nodes() > 1 && loop.memory_of) {
    std::vector<const void*> addresses;
    addresses.reserve(loop.count);
    for (std::size_t i = 0; i < loop.count; ++i) addresses.push_back(loop.memory_of(i));
    const std::vector<int> nodes = numa_.nodes_of(addresses);
    active->lists.resize(static_cast<std::size_t>(numa_.nodes()) + 1);
    for (std::size_t i = 0; i < loop.count; ++i) {
      Active::List& list = nodes[i] == Numa::kUnknown
                               ? active->lists.back()
                               : active->lists[static_cast<std::size_t>(nodes[i])];
      list.pieces.push_back(i);
    }
  }
  active->loop = std::move(loop);
  MutexLock lock(mutex_);
  waiting_.emplace(active->loop.priority, active);  // throws before its pieces count
  pieces_ += active->left;
}

bool PieceQueue::empty() const {
  MutexLock lock(mutex_);
  return pieces_ == 0;
}

double PieceQueue::busy_seconds() const {
  MutexLock lock(mutex_);
  return busy_seconds_;
}

void PieceQueue::run(const std::function<void()>& between) {
  const std::thread::id caller = std::this_thread::get_id();
  std::size_t threads = 0;
  {
    MutexLock lock(mutex_);
    if (pieces_ == 0) return;
    threads = threads_ = std::min(pieces_, static_cast<std::size_t>(executor_.threads()));
    closed_ = false;
    counted_until_ = TraceClock::now();
  }
  executor_.for_each(threads, [&](std::size_t) {
    bool ran = false;
    while (const std::optional<Piece> piece = take(ran)) {
      run_piece(*piece);
      ran = true;
      if (between && std::this_thread::get_id() == caller) between();
    }
  });
  MutexLock lock(mutex_);
  closed_ = true;
  end_span();
  count_busy();
}

void PieceQueue::count_busy() {
  const auto now = TraceClock::now();
  busy_seconds_ += std::chrono::duration<double>(now - counted_until_).count();
  counted_until_ = now;
}

// All threads leave together: a thread that stays behind alone would run loops that are added later
// by itself.
std::optional<PieceQueue::Piece> PieceQueue::take(bool ran_before) {
  const int node = numa_.nodes() > 1 ? numa_.current_node() : 0;
  const auto all = static_cast<std::size_t>(executor_.threads());
  const bool gives_way = ran_before && executor_.is_contended();
  MutexLock lock(mutex_);
  const bool more_threads = ran_before && threads_ < all && pieces_ > threads_;
  closed_ = closed_ || pieces_ == 0 || gives_way || more_threads;
  if (closed_) return std::nullopt;
  const auto first = waiting_.begin();
  Piece piece{first->second, 0};
  piece.index = piece.loop->take(node);
  --pieces_;
  note_taken(piece.loop);
  if (piece.loop->untaken == 0) waiting_.erase(first);
  return piece;
}

void PieceQueue::run_piece(const Piece& piece) {
  Active& active = *piece.loop;
  std::exception_ptr error;
  try {
    active.loop.body(piece.index);
  } catch (...) {
    error = std::current_exception();
  }
  {
    MutexLock lock(mutex_);
    if (error && piece.index < active.error_index) {
      active.error_index = piece.index;
      active.error = std::move(error);
    }
    if (--active.left > 0) return;
    count_busy();  // whoever is told that the loop has ended finds its seconds counted
  }
  // The last piece: no other thread uses the loop any more.
  if (active.loop.ended) active.loop.ended(active.error);
}

void PieceQueue::note_taken(const std::shared_ptr<Active>& loop) {
  if (!row_.on()) return;
  if (span_.loop != loop) {
    end_span();
    span_ = {loop, TraceClock::now(), 0};
  }
  ++span_.pieces;
}

void PieceQueue::end_span() {
  if (!span_.loop) return;
  const PieceLoop& loop = span_.loop->loop;
  row_.add(loop.what, loop.subject, span_.begin, TraceClock::now(), {{"pieces", span_.pieces}});
  span_ = {};
}

}  // namespace sluice
