#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <vector>

#include "device/tensor_bytes.hpp"
#include "run/initial_weights.hpp"
#include "run/run.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/dtype.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/threads.hpp"
#include "sluice/config/model_config.hpp"
#include "sluice/models/checkpoints.hpp"
#include "sluice/models/gpt2.hpp"
#include "sluice/models/gpt2_layout.hpp"
#include "sluice/models/parallel_check.hpp"
#include "sluice/models/philox.hpp"
#include "sluice/models/saved_state.hpp"
#include "sluice/models/state_reader.hpp"
#include "sluice/models/torch_dtype.hpp"
#include "sluice/models/weight_reader.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/plan/machine.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/train/run_source.hpp"

namespace sluice::train {

namespace {

constexpr std::uint64_t kTileCount = 1U << 20U;  // elements; whole checksum chunks

// Reads master weights in consecutive parts, from a file or from a run.
class WeightSource {
 public:
  WeightSource(const plan::Plan& shape, const std::string& path) {
    if (!std::filesystem::is_directory(path) || models::is_weight_folder(path)) {
      file_.emplace(shape, 0, path);
      return;
    }
    const offload::DirectoryLock lock(path, offload::DirectoryLock::Mode::shared);
    const std::string directory = models::find_run(path);
    io_ = std::make_unique<nvme::IoEngine>(
        nvme::make_backend(nvme::BackendKind::automatic, 16, 2).backend, nvme::IoEngineOptions{});
    saved_ = std::make_unique<models::StateReader>(models::read_state(directory), *io_);
    const models::RunState& state = saved_->state();
    const std::string given = config::canonical_model_text(shape.model);
    if (state.model != given) {
      throw StorageError(directory, "holds another model than --model describes" +
                                        model_difference(state.model, given) +
                                        "\n  saved: " + state.model + "\n  given: " + given);
    }
    for (const zero::UnitLayout& unit : shape.layouts) units_.push_back(unit.name);
  }

  void read(std::size_t unit, std::uint64_t offset_count, std::span<float> values) const {
    if (file_) return file_->fill_of(unit)(offset_count, values);
    std::vector<std::byte> halves(values.size_bytes());
    saved_->read_master(units_[unit], offset_count, values, halves);
  }

 private:
  std::optional<InitialWeights> file_;
  std::unique_ptr<nvme::IoEngine> io_;
  std::unique_ptr<models::StateReader> saved_;
  std::vector<std::string> units_;  // names
};

torch::Tensor load_unit(const zero::UnitLayout& layout, std::size_t unit,
                        const WeightSource& source, torch::Dtype dtype) {
  torch::Tensor flat = torch::empty({static_cast<std::int64_t>(layout.flat_count)}, dtype);
  for (std::uint64_t begin = 0; begin < layout.flat_count; begin += kTileCount) {
    const std::uint64_t count = std::min(kTileCount, layout.flat_count - begin);
    torch::Tensor part = torch::empty({static_cast<std::int64_t>(count)}, torch::kFloat32);
    source.read(unit, begin, {part.data_ptr<float>(), static_cast<std::size_t>(count)});
    flat.narrow(0, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(count)).copy_(part);
  }
  return flat;
}

// A model with all weights in memory.
class Generator {
 public:
  Generator(const plan::Plan& shape, const WeightSource& source)
      : layouts_(shape.layouts),
        modules_(models::make_gpt2_modules(shape.model, models::torch_dtype(shape.compute_dtype))) {
    for (std::size_t u = 0; u < layouts_.size(); ++u) {
      flats_.push_back(load_unit(layouts_[u], u, source, models::torch_dtype(shape.compute_dtype)));
    }
    for (std::size_t u = 0; u < layouts_.size(); ++u) {
      std::vector<torch::Tensor> borrowed;
      for (const auto& from : layouts_[u].borrowed) {
        const zero::ParamLayout& param = layouts_[from.unit].params[from.param];
        borrowed.push_back(models::view_of(param, flats_[from.unit]));
      }
      modules_[u]->bind(layouts_[u], flats_[u], borrowed);
    }
  }

  // Logits (V) after `tokens`, which stand at positions position, position + 1, ...
  torch::Tensor advance(const std::vector<std::int64_t>& tokens, std::int64_t position) {
    torch::Tensor x = torch::tensor(tokens, torch::kInt64).unsqueeze(0);  // (1, T)
    for (std::size_t u = 0; u + 1 < modules_.size(); ++u)
      x = modules_[u]->forward_cached(x, position);
    return modules_.back()->logits(x.narrow(1, x.size(1) - 1, 1)).flatten().to(torch::kFloat64);
  }
  void forget() {
    for (const auto& module : modules_) module->clear_cache();
  }

 private:
  const std::vector<zero::UnitLayout>& layouts_;
  std::vector<std::shared_ptr<models::UnitModule>> modules_;
  std::vector<torch::Tensor> flats_;
};

// With non-finite logits every draw would give one and the same token.
void check_finite(const torch::Tensor& logits, const std::string& weights_path) {
  if (logits.isfinite().all().item<bool>()) return;
  throw StorageError(weights_path,
                     "cannot be used: with these weights the model's output is not finite, they "
                     "hold NaN or infinities, or are too large");
}

// Draws with a number from Philox keyed by the seed, so the same seed gives the same text.
std::int64_t draw(const torch::Tensor& logits, const GenerateRequest& request,
                  std::uint64_t index) {
  if (request.temperature == 0) return logits.argmax().item<std::int64_t>();
  // The greatest becomes 0: at a tiny temperature it would be an infinity, and all draws alike.
  torch::Tensor scaled = (logits - logits.max()) / request.temperature;
  if (request.top_k > 0 && request.top_k < scaled.numel()) {
    const torch::Tensor least = std::get<0>(scaled.topk(request.top_k)).min();
    scaled = scaled.masked_fill(scaled < least, -std::numeric_limits<double>::infinity());
  }
  const torch::Tensor cumulative = scaled.softmax(0).cumsum(0).contiguous();
  const models::PhiloxBlock bits = models::philox4x32(
      {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32U), 0, 0},
      {static_cast<std::uint32_t>(request.seed), static_cast<std::uint32_t>(request.seed >> 32U)});
  const double uniform = (static_cast<double>(bits[0]) + 0.5) / 4294967296.0;
  const double* begin = cumulative.data_ptr<double>();
  const double* end = begin + cumulative.numel();
  return std::min<std::int64_t>(std::upper_bound(begin, end, uniform * *(end - 1)) - begin,
                                cumulative.numel() - 1);
}

// A plan's shape without placing anything: layouts of the model.
plan::Plan shape_of(const config::ModelConfig& model, DType dtype) {
  plan::Plan shape;
  shape.compute_dtype = dtype;
  shape.model = model;
  shape.layouts = models::gpt2_units(model, 1);
  return shape;
}

void check_memory(const plan::Plan& shape) {
  std::uint64_t need = 0;
  for (const zero::UnitLayout& layout : shape.layouts)
    need += layout.flat_count * size_of(shape.compute_dtype);
  const std::uint64_t available = plan::available_memory_bytes();
  if (need > available) {
    const bool can_halve = shape.compute_dtype == DType::fp32 && need / 2 <= available;
    throw DoesNotFit("generating holds all weights in memory: " + format_bytes(need) + " needed, " +
                     format_bytes(available) + " free" +
                     (can_halve ? "; --dtype bf16 takes half of that" : ""));
  }
}

}  // namespace

void run_generation(const GenerateRequest& request, GenerateObserver& observer,
                    const std::atomic<int>& stop) {
  SLUICE_CHECK(request.temperature >= 0, "--temperature must not be negative");
  SLUICE_CHECK(request.top_k >= 0 && request.max_new_tokens >= 0,
               "--top-k and --max-new-tokens must not be negative");
  SLUICE_CHECK(!request.prompt.empty(), "--prompt must not be empty: the model goes on from it");
  check_threads(at::get_num_threads() - 1);
  models::check_parallel_work();
  const torch::NoGradGuard no_grad;
  const plan::Plan shape = shape_of(config::load_model_config(request.model_path), request.dtype);
  check_memory(shape);
  std::vector<std::int64_t> tokens;
  for (const char c : request.prompt) {
    tokens.push_back(static_cast<unsigned char>(c));
    SLUICE_CHECK(tokens.back() < shape.model.vocab_size,
                 "--prompt has a byte outside the model's vocabulary");
  }
  const WeightSource source(shape, request.weights_path);
  Generator generator(shape, source);

  const std::int64_t window = shape.model.n_positions;
  // There are more tokens than `count`.
  const auto keep_last = [&](std::int64_t count) {
    tokens.erase(tokens.begin(), tokens.end() - count);
  };
  if (static_cast<std::int64_t>(tokens.size()) > window) {
    keep_last(window);
    log(LogLevel::warn, "--prompt is longer than the model's n_positions: its last " +
                            std::to_string(window) + " tokens count");
  }
  torch::Tensor logits = generator.advance(tokens, 0);
  check_finite(logits, request.weights_path);
  observer.on_ready();
  for (std::int64_t made = 0; made < request.max_new_tokens && stop == 0; ++made) {
    const std::int64_t token = draw(logits, request, static_cast<std::uint64_t>(made));
    observer.on_token(token);
    const auto position = static_cast<std::int64_t>(tokens.size());
    tokens.push_back(token);
    if (position < window) {
      logits = generator.advance({token}, position);
    } else {  // positions are absolute: when the window is full, go on from its last half
      keep_last(std::max<std::int64_t>(window / 2, 1));
      generator.forget();
      logits = generator.advance(tokens, 0);
    }
    check_finite(logits, request.weights_path);
  }
}

}  // namespace sluice::train
