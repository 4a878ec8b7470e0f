#include <array>
#include <string>

#include "backends.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"
#include "sluice/nvme/io_backend.hpp"

namespace sluice::nvme {

bool IoBackend::add_memory(std::span<std::byte> /*region*/, std::string& why_not) {
  why_not = std::string(name()) + " has no registered memory";
  return false;
}

bool IoBackend::add_file(int /*fd*/, std::string& why_not) {
  why_not = std::string(name()) + " has no registered files";
  return false;
}

BackendKind parse_backend(std::string_view name) {
  if (name == "auto") return BackendKind::automatic;
  if (name == "io_uring") return BackendKind::io_uring;
  if (name == "threads") return BackendKind::threads;
  constexpr std::array<std::string_view, 3> kNames{"auto", "io_uring", "threads"};
  const std::string nearest = nearest_name(name, kNames);
  throw InvalidArgument("unknown I/O backend \"" + std::string(name) +
                        "\": expected auto, io_uring or threads" +
                        (nearest.empty() ? "" : " (did you mean " + nearest + "?)"));
}

bool io_uring_available(std::string& why) {
#if SLUICE_HAVE_URING
  return probe_uring(why);
#else
  why = "io_uring: this build has no liburing (SLUICE_WITH_URING)";
  return false;
#endif
}

BackendChoice make_backend(BackendKind kind, unsigned depth, unsigned io_threads) {
  SLUICE_CHECK(depth >= 1 && depth <= 4096,
               "I/O depth " + std::to_string(depth) + ": expected 1 to 4096");
  SLUICE_CHECK(io_threads >= 1 && io_threads <= 64,
               "I/O threads " + std::to_string(io_threads) + ": expected 1 to 64");
  BackendChoice choice;
  if (kind != BackendKind::threads) {
    std::string why;
#if SLUICE_HAVE_URING
    if (probe_uring(why)) {
      try {
        choice.backend = make_uring_backend(depth);
        return choice;
      } catch (const IoError& error) {
        why = error.what();  // the probe's ring was small; this one may not fit the memory limit
      }
    }
#else
    io_uring_available(why);
#endif
    if (kind == BackendKind::io_uring) {
      throw InvalidArgument("the I/O backend io_uring cannot be had: " + why +
                            "; or choose auto or threads");
    }
    choice.why_not_better = "threads: " + why;
  }
  choice.backend = make_threads_backend(depth, io_threads);
  return choice;
}

}  // namespace sluice::nvme
