#pragma once
// Keys of the configuration that have no effect in a loop of the user's own. Not installed.

#include "sluice/config/train_config.hpp"

namespace sluice::train {

enum class LoopKind { engine, hooked };  // Engine in C++; HookedLoop, under Python

// Adds a note for each such key that is set. Throws InvalidArgument with all of them where the
// configuration is strict.
config::TrainConfig note_unused_keys(config::TrainConfig config, LoopKind kind);

}  // namespace sluice::train
