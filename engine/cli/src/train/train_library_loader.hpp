#pragma once
// Finds and loads the training library, which links LibTorch; the program itself does not.
// Thread-safe: free functions without state.

#include <string>

#include "sluice/train/library.hpp"

namespace sluice::cli {

// The path of the library file `name`, searched in ../lib beside this executable, as built and as
// installed. Empty when none is found; `why` then names the place.
std::string find_library(const char* name, std::string& why);

// That of the training library.
std::string find_train_library(std::string& why);

// Loads the library for the life of the process; loading LibTorch blocks for a moment. Throws Error
// that names the missing part and the remedy. Throws DoesNotFit when the address space is limited
// too far, and InvalidArgument when the environment restricts OpenMP's threads.
train::TrainLibrary& load_train_library();

}  // namespace sluice::cli
