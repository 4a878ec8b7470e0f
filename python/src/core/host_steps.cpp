#include "core/host_steps.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/threads.hpp"

namespace sluice::python {

namespace {

using cpu_adam::MomentSpan;
using cpu_adam::OptimizerConfig;
using cpu_adam::Step;
using cpu_adam::Tile;

// Elements of a 16-bit tensor that one body steps: 64 KiB of fp32 stay in the core's cache.
constexpr std::size_t kPieceElements = 16'384;

// Addresses come from tensors that the caller owns.
template <class T>
std::span<T> span_at(std::uintptr_t address, std::size_t begin, std::size_t count) {
  return {reinterpret_cast<T*>(address) + begin,  // NOLINT(performance-no-int-to-ptr): from Python
          count};
}

// Elements of one tensor.
struct Piece {
  std::size_t tensor = 0;
  std::size_t begin = 0;
  std::size_t count = 0;
};

// The moments and the numbering of a piece; master, gradient and weight are left out.
Tile tile_of(const HostTensor& tensor, DType moments, const Piece& piece) {
  Tile tile{};
  for (std::size_t k = 0; k < tensor.moments.size(); ++k) {
    const std::uintptr_t address = tensor.moments[k];
    tile.moments[k] = moments == DType::bf16
                          ? MomentSpan(span_at<Bf16>(address, piece.begin, piece.count))
                          : MomentSpan(span_at<float>(address, piece.begin, piece.count));
  }
  tile.first_element = tensor.first_element + piece.begin;
  return tile;
}

void check_tensors(const HostTypes& types, const std::vector<HostTensor>& tensors) {
  SLUICE_CHECK(types.moments != DType::fp16,
               "moments in fp16 are not supported; keep them in fp32");
  for (const HostTensor& tensor : tensors)
    SLUICE_CHECK(tensor.moments.size() <= cpu_adam::kMostMoments,
                 "a tensor has " + std::to_string(tensor.moments.size()) +
                     " moments, more than any optimizer");
}

std::optional<std::size_t> step_fp32(const OptimizerConfig& config, const Step& step, DType moments,
                                     const std::vector<HostTensor>& tensors, Executor& executor) {
  std::vector<Tile> tiles;
  tiles.reserve(tensors.size());
  for (const HostTensor& tensor : tensors) {
    Tile tile = tile_of(tensor, moments, {0, 0, tensor.count});
    tile.master = span_at<float>(tensor.parameter, 0, tensor.count);
    tile.gradient = std::span<const float>(span_at<float>(tensor.gradient, 0, tensor.count));
    tiles.push_back(tile);
  }
  const cpu_adam::Group group{config, tiles};
  if (cpu_adam::step(std::span(&group, 1), step, executor)) return std::nullopt;
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    if (cpu_adam::first_non_finite(config, tiles[i]) < tensors[i].count) return i;
  }
  return std::nullopt;
}

std::vector<Piece> pieces_of(const std::vector<HostTensor>& tensors) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (std::size_t begin = 0; begin < tensors[i].count; begin += kPieceElements)
      pieces.push_back({i, begin, std::min(kPieceElements, tensors[i].count - begin)});
  }
  return pieces;
}

// Half: Bf16 or Fp16. The master exists only here, piece by piece.
template <class Half>
std::optional<std::size_t> step_half(const OptimizerConfig& config, const Step& step, DType moments,
                                     const std::vector<HostTensor>& tensors, Executor& executor) {
  check_config(config);
  const std::vector<Piece> pieces = pieces_of(tensors);
  std::vector<char> finite(pieces.size(), 1);
  executor.for_each(pieces.size(), [&](std::size_t i) {
    const Piece& piece = pieces[i];
    const HostTensor& tensor = tensors[piece.tensor];
    const auto parameter = span_at<Half>(tensor.parameter, piece.begin, piece.count);
    alignas(64) std::array<float, kPieceElements> memory;  // NOLINT: filled on the next line
    const std::span<float> master(memory.data(), piece.count);
    std::ranges::transform(parameter, master.begin(), [](Half value) { return to_fp32(value); });
    Tile tile = tile_of(tensor, moments, piece);
    tile.master = master;
    tile.gradient = std::span<const Half>(span_at<Half>(tensor.gradient, piece.begin, piece.count));
    tile.weight = parameter;
    finite[i] = cpu_adam::step_tile(config, step, tile) ? 1 : 0;
  });
  const auto bad = std::ranges::find(finite, 0);
  if (bad == finite.end()) return std::nullopt;
  return pieces[static_cast<std::size_t>(bad - finite.begin())].tensor;
}

}  // namespace

void check_config(const OptimizerConfig& config) {
  static_cast<void>(cpu_adam::step_tile(config, Step{}, Tile{}));
}

HostSteps::HostSteps(int threads)
    : threads_(threads),
      executor_(make_executor(
          threads, fork_count() == 0 ? ExecutorKind::automatic : ExecutorKind::plain_threads)),
      forks_(fork_count()) {}

HostSteps::~HostSteps() {
  const MutexLock lock(mutex_);
  if (forks_ != fork_count())
    static_cast<void>(executor_.release());  // its threads are the parent's
}

// A forked child gets threads of its own. They are plain ones: oneTBB still counts the threads of
// the parent.
Executor& HostSteps::executor() {
  const MutexLock lock(mutex_);
  if (forks_ != fork_count()) {
    static_cast<void>(executor_.release());
    executor_ = make_executor(threads_, ExecutorKind::plain_threads);
    forks_ = fork_count();
  }
  return *executor_;
}

std::optional<std::size_t> HostSteps::step(const OptimizerConfig& config, std::int64_t step,
                                           const HostTypes& types,
                                           const std::vector<HostTensor>& tensors) {
  check_tensors(types, tensors);
  const Step now{.step = step};
  switch (types.parameter) {
    case DType::bf16:
      return step_half<Bf16>(config, now, types.moments, tensors, executor());
    case DType::fp16:
      return step_half<Fp16>(config, now, types.moments, tensors, executor());
    case DType::fp32:
      break;
  }
  return step_fp32(config, now, types.moments, tensors, executor());
}

}  // namespace sluice::python
