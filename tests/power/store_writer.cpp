// Commits steps to a swap store for ever, or as many as asked: store_writer DURABILITY STEPS DIR...
// Says "committed N" after each commit. Runs under the recorder, by the threads backend.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "store_steps.hpp"

int main(int argc, char** argv) {
  using namespace sluice::power;
  if (argc < 4) return 2;
  const auto durability = durability_named(argv[1]);
  const std::int64_t steps = std::atoll(argv[2]);
  try {
    const auto io = make_engine();
    const sluice::offload::SwapPlace place({argv + 3, argv + argc}, {});
    const auto store = open_or_create(place, *io, durability);
    for (std::int64_t step = store->committed_step() + 1, end = step + steps; step < end; ++step) {
      update_all(*store, step);
      store->commit(step, metadata_of(step));
      const std::string said = "committed " + std::to_string(step) + "\n";
      if (::write(STDOUT_FILENO, said.data(), said.size()) < 0) return 2;
    }
    store->close_cleanly();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "store_writer: " << error.what() << "\n";
    return 1;
  }
}
