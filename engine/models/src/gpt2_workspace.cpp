#include "sluice/models/gpt2_layout.hpp"
namespace sluice::models {
UnitWorkspace unit_workspace(const config::ModelConfig& model, std::size_t,
                             std::uint64_t micro_batch, std::uint64_t element_bytes, int) {
  const std::uint64_t bytes =
      micro_batch * static_cast<std::uint64_t>(model.n_embd) * element_bytes;
  return {24 * bytes, 24 * bytes};
}
}  // namespace sluice::models
