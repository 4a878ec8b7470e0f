#include <array>
#include <string>

#include "backend/backends.hpp"
#include "backend/index_of.hpp"
#include "sluice/base/error.hpp"
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

// Stubs for backends that this build lacks. try_make() asks for availability first.
#if !SLUICE_HAVE_URING
std::unique_ptr<IoBackend> make_uring_backend(unsigned /*depth*/, SubmitPolling /*polling*/) {
  return nullptr;
}
bool io_uring_available(std::string& why) {
  why = "io_uring: this build has no liburing (SLUICE_WITH_URING)";
  return false;
}
#endif
#if !SLUICE_HAVE_AIO
std::unique_ptr<IoBackend> make_libaio_backend(unsigned /*depth*/) {
  return nullptr;
}
bool libaio_available(std::string& why) {
  why = "libaio: this build has no libaio (SLUICE_WITH_AIO)";
  return false;
}
#endif

namespace {

// A backend that the machine or the build may lack.
struct Candidate {
  BackendKind kind;
  const char* name;
  bool (*available)(std::string& why);
  std::unique_ptr<IoBackend> (*make)(unsigned depth, SubmitPolling polling);
};

std::unique_ptr<IoBackend> make_libaio(unsigned depth, SubmitPolling /*polling*/) {
  return make_libaio_backend(depth);
}

// Best first. Plain threads come after these and are always available.
constexpr std::array<Candidate, 2> kCandidates{
    Candidate{BackendKind::io_uring, "io_uring", io_uring_available, make_uring_backend},
    Candidate{BackendKind::libaio, "libaio", libaio_available, make_libaio}};

// Null, with the reason in `why`, when the backend is unavailable.
std::unique_ptr<IoBackend> try_make(const Candidate& candidate, unsigned depth,
                                    SubmitPolling polling, std::string& why) {
  if (!candidate.available(why)) return nullptr;
  try {
    return candidate.make(depth, polling);
  } catch (const IoError& error) {
    why = error.what();  // the probe's queue was short; this one may exceed a limit
    return nullptr;
  }
}

}  // namespace

BackendKind parse_backend(std::string_view name) {
  constexpr std::array<std::string_view, 4> kNames{"auto", "io_uring", "libaio", "threads"};
  return static_cast<BackendKind>(index_of("I/O backend", name, kNames));
}

BackendChoice make_backend(BackendKind kind, unsigned depth, unsigned io_threads,
                           SubmitPolling polling) {
  SLUICE_CHECK(depth >= 1 && depth <= 4096,
               "I/O depth " + std::to_string(depth) + ": expected 1 to 4096");
  SLUICE_CHECK(io_threads >= 1 && io_threads <= 64,
               "I/O threads " + std::to_string(io_threads) + ": expected 1 to 64");
  BackendChoice choice;
  std::string reasons;
  for (const Candidate& candidate : kCandidates) {
    if (kind != BackendKind::automatic && kind != candidate.kind) continue;
    std::string why;
    choice.backend = try_make(candidate, depth, polling, why);
    if (choice.backend) break;
    if (kind == candidate.kind) {
      throw InvalidArgument("the I/O backend " + std::string(candidate.name) +
                            " cannot be had: " + why + "; or choose auto or threads");
    }
    reasons += (reasons.empty() ? "" : "; ") + why;
  }
  if (!choice.backend) choice.backend = make_threads_backend(depth, io_threads);
  SLUICE_CHECK(polling == SubmitPolling::off || choice.backend->name() == "io_uring",
               "submit polling is io_uring's, and the I/O backend is " +
                   std::string(choice.backend->name()) +
                   (reasons.empty() ? "" : " (" + reasons + ")") + ": switch it off");
  if (!reasons.empty()) {
    choice.why_not_better = std::string(choice.backend->name()) + ": " + reasons;
  }
  return choice;
}

}  // namespace sluice::nvme
