// Data to train on: a text read as bytes, and a .bin of tokens.
#include <vector>

#include "sluice/models/dataset.hpp"
#include "target.hpp"

namespace sluice::fuzz {
namespace {

constexpr std::uint64_t kSequence = 8;

void read_windows(models::Dataset& data) {
  data.identity();
  data.hold_out(0.25);
  std::vector<std::int64_t> window(kSequence + 1);
  for (std::int64_t step = 1; step <= 4; ++step) data.draw(7, step, 0, window);
  for (std::uint64_t i = 0; i < data.eval_window_count(3); ++i) data.eval_window(i, 3, window);
  data.evaluate_all();
  data.eval_window(data.eval_window_count(0) - 1, 0, window);
}

}  // namespace
}  // namespace sluice::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size_bytes) {
  using namespace sluice;
  for (const char* name : {"corpus.txt", "corpus.bin"}) {
    const std::string path = fuzz::write_input(name, fuzz::text_of(data, size_bytes));
    for (const std::uint64_t vocabulary : {256U, 300U}) {
      fuzz::read_or_refuse([&] {
        models::Dataset dataset(path, fuzz::kSequence, vocabulary);
        fuzz::read_windows(dataset);
      });
    }
  }
  return 0;
}
