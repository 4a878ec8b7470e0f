#pragma once
// AioHandle: transfers between memory of Python objects and files, by one IoEngine. It holds a
// transfer's object and file until the transfer has ended.
//
// All calls need the GIL; calls that block release it. In a forked child the handle of the parent
// refuses every call, and its destructor leaves the parent's engine alone.

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace sluice::python {

struct AioOptions {
  std::uint32_t block_bytes = 0;  // a multiple of 4096
  unsigned depth = 0;             // 1 to 4096
  unsigned threads = 1;           // of the backend "threads"; the others need none
};

// Direction of a transfer, and its place in the file.
struct AioRequest {
  enum class Direction { read, write };
  Direction direction = Direction::read;
  std::string path;
  std::uint64_t offset_bytes = 0;
  bool validate = false;  // compare the memory with the file afterwards
};

class AioHandle {
 public:
  // Throws InvalidArgument for options out of range.
  explicit AioHandle(const AioOptions& options);
  // Blocks until all transfers have ended, without the GIL. The log gets the errors of transfers
  // that nobody waited for.
  ~AioHandle();
  AioHandle(const AioHandle&) = delete;
  AioHandle& operator=(const AioHandle&) = delete;

  // Starts a transfer of the whole buffer; wait() finishes it. Opens the file, and for a write
  // makes it and allocates its blocks, without the GIL. Throws IoError where that fails, and the
  // exceptions of Buffer.
  void begin(const AioRequest& request, const pybind11::object& buffer);
  // begin(), and waits for this transfer alone. Throws its error.
  void transfer(const AioRequest& request, const pybind11::object& buffer);
  // Finishes every transfer that begin() started; returns their number. Throws the first error, by
  // the order of the calls, after all have ended.
  std::size_t wait();

  // The I/O backend in use, and why not a better one (empty: it is the best).
  std::string backend_name() const;
  std::string why_not_better() const;

  // Registers an object's memory with the backend until free_memory() or the handle's end; the
  // handle keeps the object.
  void keep_memory(const pybind11::object& object);
  // Lets go of the object with this address. Returns false when the handle has none. Throws
  // InvalidArgument when a pending transfer uses it.
  bool free_memory(std::uintptr_t address);

 private:
  struct State;
  struct Transfer;
  // Throws Error in a forked child.
  State& state() const;
  std::unique_ptr<Transfer> start(const AioRequest& request, const pybind11::object& buffer);

  std::unique_ptr<State> state_;
  std::uint64_t forks_;
};

}  // namespace sluice::python
