#pragma once
// ReductionConfig: how gradients are summed over ranks, in DeepSpeed's keys. The result is the mean
// over the ranks unless `takes_sum`. The other fields say where the division happens and which type
// is sent, so they change roundings and the range of values, not the meaning.
// Thread-compatible: plain values.

#include <optional>

#include "sluice/base/dtype.hpp"

namespace sluice::config {

struct ReductionConfig {
  bool takes_sum = false;                // gradient_allreduce_op "sum": updates take the sum
  bool prescales = false;                // prescale_gradients
  double predivide_factor = 1;           // gradient_predivide_factor
  std::optional<DType> wire_dtype = {};  // communication_data_type; empty: as gradients are summed

  // From the sum of the ranks' gradients to the gradient of an update.
  double divisor(int ranks) const { return takes_sum ? 1 : ranks; }
  // Each rank's gradients are divided by it before the sum.
  double divisor_before_sum(int ranks) const {
    if (ranks == 1 || takes_sum) return 1;
    return prescales ? ranks : predivide_factor;
  }
  // The sum of what they have divided is divided by it.
  double divisor_of_sum(int ranks) const {
    if (ranks == 1 || takes_sum || prescales) return 1;
    return ranks / predivide_factor;
  }
};

}  // namespace sluice::config
