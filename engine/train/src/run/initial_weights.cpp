#include "run/initial_weights.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <span>
#include <sstream>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"
#include "sluice/models/gpt2_layout.hpp"

namespace sluice::train {

namespace {

constexpr const char* kPrefix = "transformer.";

// The entry of a parameter. A checkpoint of the bare GPT2Model has the same names without the
// prefix.
template <typename Map>
const typename Map::mapped_type* find_entry(const Map& entries, const std::string& name) {
  auto found = entries.find(name);
  if (found == entries.end() && name.rfind(kPrefix, 0) == 0) {
    found = entries.find(name.substr(std::char_traits<char>::length(kPrefix)));
  }
  return found == entries.end() ? nullptr : &found->second;
}

const models::WeightReader::Tensor* find_tensor(const models::WeightReader& file,
                                                const std::string& name) {
  return find_entry(file.tensors(), name);
}

std::string why_absent(const models::WeightReader& file, const std::string& name) {
  const std::string* const dtype = find_entry(file.skipped(), name);
  if (dtype == nullptr) return " is missing";
  return " has dtype " + *dtype + ", which is not supported; expected F32, BF16 or F16";
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return std::string("(") + join(shape, ", ") + ")";
}

constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "transformer.wte.weight";

// Attention masks, which Hugging Face's files hold beside the parameters.
bool is_mask(const models::TensorEntry& tensor) {
  if (tensor.name.ends_with(".attn.bias")) return tensor.shape.size() == 4;
  return tensor.name.ends_with(".attn.masked_bias") && tensor.shape.empty();
}

// The head's own values would be lost in a tied model, so a copy has to be one.
bool are_equal(const models::WeightReader& file, const models::WeightReader::Tensor& one,
               const models::WeightReader::Tensor& other) {
  if (one.entry.shape != other.entry.shape) return false;
  constexpr std::uint64_t kPart = std::uint64_t{1} << 20U;
  const std::uint64_t count = one.entry.size_bytes / size_of(one.entry.dtype);
  std::array<std::vector<float>, 2> parts;
  for (std::uint64_t done = 0; done < count; done += kPart) {
    for (std::vector<float>& part : parts) part.resize(std::min(kPart, count - done));
    file.read_fp32(one, done, parts[0]);
    file.read_fp32(other, done, parts[1]);
    if (!std::ranges::equal(std::as_bytes(std::span(parts[0])), std::as_bytes(std::span(parts[1]))))
      return false;
  }
  return true;
}

// Whether `value` stays finite when it is rounded to the type that computes.
bool is_finite_as(DType dtype, float value) {
  if (dtype == DType::bf16) return std::isfinite(to_fp32(to_bf16(value)));
  if (dtype == DType::fp16) return std::isfinite(to_fp32(to_fp16(value)));
  return std::isfinite(value);
}

// The mistakes of a file, one line each. A file of another model has many, so the list is cut.
class Problems {
 public:
  void add(const std::string& problem) {
    if (++count_ <= kMostLines) text_ += "\n  " + problem;
  }
  bool empty() const { return count_ == 0; }
  std::string text() const {
    if (count_ <= kMostLines) return text_;
    return text_ + "\n  ... and " + std::to_string(count_ - kMostLines) + " more";
  }

 private:
  static constexpr std::size_t kMostLines = 10;
  std::size_t count_ = 0;
  std::string text_;
};

}  // namespace

InitialWeights::InitialWeights(const plan::Plan& plan, std::uint64_t seed,
                               const std::optional<std::string>& path)
    : plan_(plan), seed_(seed) {
  if (!path) return;
  file_.emplace(*path);
  std::set<std::string> used;
  Problems problems;
  for (const zero::UnitLayout& unit : plan.layouts) {
    for (const zero::ParamLayout& param : unit.params) {
      const models::WeightReader::Tensor* tensor = find_tensor(*file_, param.name);
      if (tensor == nullptr) {
        problems.add(param.name + " " + shape_text(param.shape) + why_absent(*file_, param.name));
      } else if (tensor->entry.shape != param.shape) {
        problems.add(param.name + " is " + shape_text(tensor->entry.shape) + ", the model has " +
                     shape_text(param.shape));
      }
      if (tensor != nullptr) used.insert(tensor->entry.name);
    }
  }
  for (const auto& [name, tensor] : file_->tensors()) {
    if (used.count(name) != 0 || is_mask(tensor.entry)) continue;
    const bool tied_head = plan.model.tie_word_embeddings && name == kHead;
    const auto* const embedding = tied_head ? find_tensor(*file_, kEmbedding) : nullptr;
    if (embedding != nullptr && are_equal(*file_, tensor, *embedding)) continue;
    problems.add(name + " " + shape_text(tensor.entry.shape) +
                 (tied_head ? " is not equal to wte.weight, as it would be in a tied model; set "
                              "\"tie_word_embeddings\": false in --model for a head of its own"
                            : " belongs to no parameter of the model"));
  }
  if (!problems.empty())
    throw StorageError(*path, "these weights are not of the model in --model:" + problems.text());
}

StateUpdater::Fill InitialWeights::fill_of(std::size_t unit) const {
  const std::uint64_t first =
      zero::shard_range(plan_.layouts[unit], plan_.config.rank, plan_.config.world_size).begin;
  return [this, unit, first](std::uint64_t offset_count, std::span<float> values) {
    if (file_) {
      fill_from_file(unit, first + offset_count, values);
    } else {
      models::fill_initial(plan_.model, plan_.layouts[unit], seed_, first + offset_count, values);
    }
  };
}

void InitialWeights::fill_from_file(std::size_t unit, std::uint64_t offset_count,
                                    std::span<float> values) const {
  std::fill(values.begin(), values.end(), 0.0F);  // padding
  for (const zero::ParamLayout& param : plan_.layouts[unit].params) {
    const zero::ShardRange part = zero::part_in(param, offset_count, values.size());
    if (part.count == 0) continue;
    const models::WeightReader::Tensor& tensor = *find_tensor(*file_, param.name);
    const std::span<float> filled = values.subspan(part.begin - offset_count, part.count);
    file_->read_fp32(tensor, part.begin - param.offset_count, filled);
    check_finite(tensor, part.begin - param.offset_count, filled);
  }
}

void InitialWeights::check_finite(const models::WeightReader::Tensor& tensor,
                                  std::uint64_t offset_count, std::span<const float> values) const {
  const DType dtype = plan_.compute_dtype;
  const auto bad = std::find_if(values.begin(), values.end(),
                                [&](float value) { return !is_finite_as(dtype, value); });
  if (bad == values.end()) return;
  const auto element = offset_count + static_cast<std::uint64_t>(bad - values.begin());
  std::ostringstream text;
  text << "tensor " << tensor.entry.name << " has the value " << *bad << " at element "
       << format_count(element) << ", which is non-finite"
       << (std::isfinite(*bad) ? " in " + std::string(name_of(dtype)) : "")
       << ": these weights cannot be used; repair the file, or export it anew";
  throw StorageError(file_->path_of(tensor), text.str());
}

void initialise_states(RunResources& resources, std::uint64_t seed,
                       const std::optional<std::string>& init_path,
                       const std::function<void(double)>& progress) {
  const InitialWeights initial(resources.plan, seed, init_path);
  std::vector<Ticket> work;
  for (std::size_t u = 0; u < resources.plan.layouts.size(); ++u)
    work.push_back(resources.updater->begin_initialise(u, initial.fill_of(u)));
  for (std::size_t u = 0; u < work.size(); ++u) {
    work[u].wait();
    if (progress) progress(static_cast<double>(u + 1) / static_cast<double>(work.size()));
  }
  finish_all(work);
}

}  // namespace sluice::train
