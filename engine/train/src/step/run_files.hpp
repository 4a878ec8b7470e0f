#pragma once
// RunFiles: the files of a run and the I/O engine that moves their bytes: the swap store with the
// optimizer states, and the scratch file with everything else that spills to NVMe. In the order of
// construction; destroyed in reverse.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sluice/base/trace.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/offload/scratch_file.hpp"
#include "sluice/offload/swap_store.hpp"
#include "sluice/plan/plan.hpp"

namespace sluice::train {

// `create`: the swap directory begins empty. `open`: it holds a committed state to continue from.
enum class SwapMode { create, open };
// `held`: directories that the run has locked already, and keeps locked; may be null.
struct SwapStart {
  SwapMode mode = SwapMode::create;
  const offload::HeldDirectories* held = nullptr;
};

// The I/O engine of a run, as the "aio" section says. Sets `choice` to a line that names the
// backend and why not a better one. `trace` may be null, and outlives the engine. Throws
// InvalidArgument when "strict" forbids the choice.
std::unique_ptr<nvme::IoEngine> make_io_engine(const plan::Plan& plan, std::string& choice,
                                               Trace* trace);

// Made and destroyed by the thread that trains. The I/O engine and the files are used by any
// thread, as their headers say.
struct RunFiles {
  // Opens the files that the plan places on NVMe; a member without files stays null. May measure
  // drives (some seconds) to share a stripe between them. Removes leftovers of killed runs. Throws
  // IoError, StorageError, InvalidArgument; then committed states are unchanged.
  RunFiles(const plan::Plan& plan, const SwapStart& start, Trace* trace);
  RunFiles(const RunFiles&) = delete;
  RunFiles& operator=(const RunFiles&) = delete;

  // Throws StorageError when the run has locked the directory, and its lock was removed or
  // replaced.
  void check_lock(const std::string& directory) const;

  // Lines for people: the backend, the striping, the file systems, and why not a better choice.
  std::vector<std::string> choices;
  std::unique_ptr<nvme::IoEngine> io;
  std::unique_ptr<offload::SwapStore> store;
  std::vector<offload::DirectoryLock> scratch_locks;
  std::unique_ptr<offload::ScratchFile> scratch;
  std::vector<nvme::Registration> scratch_registrations;

 private:
  const offload::HeldDirectories* const held_;

  void open_store(const plan::Plan& plan, SwapMode mode);
  bool holds(const std::string& directory) const;
  void open_scratch(const plan::Plan& plan);
  offload::SwapPlace make_place(const plan::Plan& plan,
                                const std::vector<std::string>& directories);
  void note_place(const plan::Plan& plan, const std::string& directory,
                  const std::string& why_buffered);
};

}  // namespace sluice::train
