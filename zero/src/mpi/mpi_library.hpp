#pragma once
// MpiLibrary: the calls of MPI that Sluice makes, in a library of their own, libsluice_mpi.so,
// which is loaded by name. It is the only code that includes mpi.h. No exception and no object of
// another library crosses this interface. Not installed.

namespace sluice::zero {

// A message under way.
class MpiMessage {
 public:
  virtual ~MpiMessage() = default;
  // 1: done, 0: under way, -1: failed, and MpiLibrary::error() says why. Does not block.
  virtual int test() = 0;
  // Before the destruction of a message that is not done.
  virtual void cancel() = 0;
};

// Thread-safe: MPI is started with MPI_THREAD_MULTIPLE.
class MpiLibrary {
 public:
  virtual ~MpiLibrary() = default;
  // Starts MPI and makes `channels` communicators of all ranks, in which messages do not mix.
  // Blocks until all ranks have started. False: error() says why.
  virtual bool start(int channels) = 0;
  // Ends MPI; blocks until all ranks do so. Nothing where another library has started MPI.
  virtual void finish() = 0;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // Start a message; null: error() says why. The caller deletes it.
  virtual MpiMessage* begin_send(int channel, int to, int tag, const void* bytes,
                                 int size_bytes) = 0;
  virtual MpiMessage* begin_receive(int channel, int from, int tag, void* bytes,
                                    int size_bytes) = 0;
  // The text of the calling thread's last call that failed.
  virtual const char* error() const = 0;
};

inline constexpr const char* kMpiLibrary = "libsluice_mpi.so";
inline constexpr const char* kMakeMpiLibrary = "sluice_make_mpi_library";
using MakeMpiLibrary = MpiLibrary* (*)();

}  // namespace sluice::zero
