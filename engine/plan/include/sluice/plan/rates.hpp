#pragma once
// The rates of a machine for a model of some shape. The training library measures them
// (sluice/train/library.hpp), a file stores them, and they predict steps (prediction.hpp) and
// choose between plans. Thread-safe: values and free functions without state.

#include <functional>
#include <optional>
#include <string>

namespace sluice::plan {

struct Plan;

// Seconds of one micro-batch in one unit.
struct UnitSeconds {
  double forward = 0;         // without saving activations
  double forward_saving = 0;  // saving the activations that backward needs; 0 for the head
  double backward = 0;        // after forward_saving; for the head, forward and backward together
};
// The first micro-batch of a visit finds the unit's weights in memory. The next ones find them in
// the processor's caches, as far as they fit.
struct UnitRates {
  UnitSeconds first;
  UnitSeconds next;
};

// The rates of each kind of work, measured alone, with the threads of the plan.
struct MachineRates {
  UnitRates embedding;
  UnitRates block;
  UnitRates head;
  double update_elements_per_second = 0;  // the optimizer's step in memory
  double gradient_bytes_per_second = 0;   // clearing a gradient, then its norm and finite check
  double copy_bytes_per_second = 0;       // between host memory and the device
  double checksum_bytes_per_second = 0;   // checksums of written states
  // All drives of the swap directories together. 0: no state is on NVMe.
  double read_bytes_per_second = 0;
  double write_bytes_per_second = 0;
  // Reads and writes added, in an update's pattern: tiles read and written back.
  double swap_bytes_per_second = 0;
};

// One line with everything that the rates depend on: machine, program, shapes, threads,
// directories.
std::string rates_key(const Plan& plan);

// Measured rates and the time of the measurement.
struct SavedRates {
  MachineRates rates;
  std::string measured;  // "2026-11-22 10:30"
};
// Loads the rates stored under `key`. Returns nullopt when there are none, when the file is not a
// rates file, or when a number is implausible (a speed of nothing, seconds without end).
std::optional<SavedRates> load_rates(const std::string& path, const std::string& key);
// For a file that a user named, and that load_rates() would pass over without a word: throws
// IoError when `path` cannot be read, and InvalidArgument when it holds something else than rates.
// An empty file passes.
void require_rates(const std::string& path);
// Throws InvalidArgument when `path` is a file with other content than rates: save_rates() would
// replace it. A missing or empty file passes. Throws IoError when no file can be made beside
// `path`.
void check_rates_path(const std::string& path);
// Adds the rates to the file, in place of those under the same key. The file keeps the newest
// entries, 64 at most. Throws IoError, and InvalidArgument as check_rates_path() does.
void save_rates(const std::string& path, const std::string& key, const SavedRates& saved);

// Finds the rates for a plan. Returns nullopt when they are unknown.
using FindRates = std::function<std::optional<MachineRates>(const Plan&)>;
// Finds rates in a file, which may be missing.
FindRates rates_in(std::string path);

}  // namespace sluice::plan
