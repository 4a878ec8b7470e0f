#pragma once
// InitialWeights: the master weights of a new run, from the model's initialisation or from
// safetensors files.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "sluice/models/weight_reader.hpp"
#include "sluice/plan/plan.hpp"
#include "step/run_resources.hpp"
#include "update/state_updater.hpp"

namespace sluice::train {

// Constant after construction: the fills may run on several threads at once.
class InitialWeights {
 public:
  // `path`: as models::WeightReader. It must have every parameter of the model in its shape (names
  // with or without "transformer.") and nothing else but attention masks and, in a tied model, a
  // head with the bytes of wte.weight. Otherwise throws StorageError listing parameters that are
  // missing, unknown or of another shape.
  InitialWeights(const plan::Plan& plan, std::uint64_t seed,
                 const std::optional<std::string>& path);
  // Fills elements from `offset_count` on of a unit's shard. The fill throws StorageError for a
  // value of the file that is non-finite, or becomes so in the type that computes.
  StateUpdater::Fill fill_of(std::size_t unit) const;

 private:
  void fill_from_file(std::size_t unit, std::uint64_t offset_count, std::span<float> values) const;

  void check_finite(const models::WeightReader::Tensor& tensor, std::uint64_t offset_count,
                    std::span<const float> values) const;

  const plan::Plan& plan_;
  const std::uint64_t seed_;
  std::optional<models::WeightReader> file_;
};

// Brings initial states to their homes: master weights as above, moments of zero. Blocks.
// `progress` is told the fraction that is done, unit by unit; may be empty. Throws as
// InitialWeights, and the errors of the updater.
void initialise_states(RunResources& resources, std::uint64_t seed,
                       const std::optional<std::string>& init_path,
                       const std::function<void(double)>& progress = {});

}  // namespace sluice::train
