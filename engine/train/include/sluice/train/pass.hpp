#pragma once
// Pass: the use of a unit in a user's loop. Thread-safe: values.

namespace sluice::train {

// training: a forward with its backward. evaluation: a forward without gradients.
enum class Pass { training, evaluation };

}  // namespace sluice::train
