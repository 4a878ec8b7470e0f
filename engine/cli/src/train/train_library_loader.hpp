#pragma once
// Finds and loads the training library, which brings LibTorch; the program itself links none of it.
// Thread-safe: free functions without state.

#include <string>

#include "sluice/train/library.hpp"

namespace sluice::cli {

// The library beside this executable (../lib, as built and as installed), or empty with `why`
// saying where it was looked for.
std::string find_train_library(std::string& why);

// Loads it; it stays for the life of the process. Blocks for a moment (LibTorch). Throws Error that
// says what is missing and what to do.
train::TrainLibrary& load_train_library();

}  // namespace sluice::cli
