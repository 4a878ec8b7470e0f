#pragma once
// What a machine does in a second with a model of some shape: measured by the training library
// (sluice/train/library.hpp), kept in a file, used to predict steps (prediction.hpp) and to choose
// between plans. Thread-safe: values and free functions without state.

#include <functional>
#include <optional>
#include <string>

namespace sluice::plan {

struct Plan;

// Of one micro-batch in one unit.
struct UnitSeconds {
  double forward = 0;          // without gradients
  double forward_keeping = 0;  // with what backward needs; 0 for the head
  double backward = 0;         // after that; the head: forward and backward together
};
// The first micro-batch of a visit finds the unit's weights in memory, the next ones in the
// processor's caches, as far as these hold them.
struct UnitRates {
  UnitSeconds first;
  UnitSeconds next;
};

// What a machine does in a second, each thing alone, with the threads of the plan.
struct MachineRates {
  UnitRates embedding;
  UnitRates block;
  UnitRates head;
  double update_elements_per_second = 0;  // the optimizer's step in memory
  double gradient_bytes_per_second = 0;   // clearing a gradient, then its norm and finite check
  double copy_bytes_per_second = 0;       // between host memory and the device
  double checksum_bytes_per_second = 0;   // of states that are written
  // The drives of the swap directories, all together; 0: no state is on NVMe.
  double read_bytes_per_second = 0;
  double write_bytes_per_second = 0;
  double swap_bytes_per_second = 0;  // as an update does it, tiles read and written back, together
};

// Everything that rates depend on: machine, program, shapes, threads, directories, as one line.
std::string rates_key(const Plan& plan);

// The rates that were saved under `key`; nullopt when there are none, the file is not readable as
// one of rates, or they are not those of a machine (a speed of nothing, seconds without end).
struct SavedRates {
  MachineRates rates;
  std::string measured;  // when: "2026-11-22 10:30"
};
std::optional<SavedRates> load_rates(const std::string& path, const std::string& key);
// Throws InvalidArgument where something else than rates would be replaced at `path`. An absent or
// empty file is fine.
void check_rates_path(const std::string& path);
// Replaces the file with one that has these, and the newest others. Throws IoError, and what
// check_rates_path() does.
void save_rates(const std::string& path, const std::string& key, const SavedRates& saved);

// The rates that are known for such a plan, if any.
using FindRates = std::function<std::optional<MachineRates>(const Plan&)>;
// Those of a file; it may be absent.
FindRates rates_in(std::string path);

}  // namespace sluice::plan
