// libsluice_mpi_counted.so, preloaded: stands between a program and MPI, as MPI's profiling
// interface allows, and counts the bytes of every send, by the communicator's number. Sluice is not
// asked.

#include <mpi.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace {

constexpr std::size_t kCommunicators = 8;
std::atomic<std::size_t> communicators{0};
std::array<std::atomic<MPI_Comm>, kCommunicators> handles{};
std::array<std::atomic<std::uint64_t>, kCommunicators> sent{};
// Calls that send in ways that are not counted.
std::atomic<int> others{0};

std::uint64_t size_of(int count, MPI_Datatype type) {
  int bytes = 0;
  PMPI_Type_size(type, &bytes);
  return static_cast<std::uint64_t>(count) * static_cast<std::uint64_t>(bytes);
}

}  // namespace

// Their parameters are MPI's.
// NOLINTBEGIN(readability-function-size)
#define COUNTED extern "C" __attribute__((visibility("default")))

// In the order in which the program makes them.
COUNTED int MPI_Comm_dup(MPI_Comm of, MPI_Comm* made) {
  const int result = PMPI_Comm_dup(of, made);
  handles[communicators++] = *made;
  return result;
}

COUNTED int MPI_Isend(const void* bytes, int count, MPI_Datatype type, int to, int tag,
                      MPI_Comm communicator, MPI_Request* request) {
  bool found = false;
  for (std::size_t i = 0; i < communicators; ++i) {
    if (handles[i] != communicator) continue;
    sent[i] += size_of(count, type);
    found = true;
  }
  if (!found) ++others;
  return PMPI_Isend(bytes, count, type, to, tag, communicator, request);
}

COUNTED int MPI_Send(const void* bytes, int count, MPI_Datatype type, int to, int tag,
                     MPI_Comm communicator) {
  ++others;
  return PMPI_Send(bytes, count, type, to, tag, communicator);
}

COUNTED int MPI_Bcast(void* bytes, int count, MPI_Datatype type, int root, MPI_Comm communicator) {
  ++others;
  return PMPI_Bcast(bytes, count, type, root, communicator);
}

COUNTED int MPI_Allgather(const void* from, int from_count, MPI_Datatype from_type, void* to,
                          int to_count, MPI_Datatype to_type, MPI_Comm communicator) {
  ++others;
  return PMPI_Allgather(from, from_count, from_type, to, to_count, to_type, communicator);
}

COUNTED int MPI_Allreduce(const void* from, void* to, int count, MPI_Datatype type,
                          MPI_Op operation, MPI_Comm communicator) {
  ++others;
  return PMPI_Allreduce(from, to, count, type, operation, communicator);
}

COUNTED std::uint64_t counted_sent_bytes(int communicator) {
  return sent[static_cast<std::size_t>(communicator)];
}
COUNTED int counted_other_sends() {
  return others;
}
// NOLINTEND(readability-function-size)
