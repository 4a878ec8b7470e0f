#pragma once
// NcclApi: the part of NCCL that Sluice calls, one function per function of NCCL. Every call goes
// through it, so tests can order, delay and fail the calls. Not installed.

#include <nccl.h>

#include <cstddef>
#include <memory>
#include <string>

namespace sluice::zero {

// An ncclResult_t that must not be ignored. A type, because GCC 12 ignores [[nodiscard]] on a
// virtual function.
class [[nodiscard]] NcclResult {
 public:
  // NOLINTBEGIN(google-explicit-constructor): stands for the result in every expression
  NcclResult(ncclResult_t result) : result_(result) {}
  operator ncclResult_t() const { return result_; }
  // NOLINTEND(google-explicit-constructor)

 private:
  ncclResult_t result_;
};

// Memory of a collective; `peer`: the root, or the other rank.
struct NcclMemory {
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t count = 0;  // of `type`
  ncclDataType_t type = ncclUint8;
  int peer = 0;
};

// Thread-safe for different communicators, as NCCL is.
class NcclApi {
 public:
  virtual ~NcclApi() = default;
  virtual std::string error_text(ncclResult_t result, ncclComm_t comm) = 0;
  virtual NcclResult get_unique_id(ncclUniqueId* id) = 0;
  virtual NcclResult init_rank(ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank,
                               ncclConfig_t* config) = 0;
  virtual NcclResult async_error(ncclComm_t comm, ncclResult_t* error) = 0;
  virtual NcclResult finalize(ncclComm_t comm) = 0;
  virtual NcclResult destroy(ncclComm_t comm) = 0;
  virtual NcclResult abort(ncclComm_t comm) = 0;
  virtual NcclResult group_start() = 0;
  virtual NcclResult group_end() = 0;
  virtual NcclResult all_gather(const NcclMemory& memory, ncclComm_t comm, void* stream) = 0;
  virtual NcclResult reduce_scatter(const NcclMemory& memory, ncclComm_t comm, void* stream) = 0;
  virtual NcclResult all_reduce(const NcclMemory& memory, ncclComm_t comm, void* stream) = 0;
  virtual NcclResult broadcast(const NcclMemory& memory, ncclComm_t comm, void* stream) = 0;
  virtual NcclResult reduce(const NcclMemory& memory, ncclComm_t comm, void* stream) = 0;
  virtual NcclResult send(const NcclMemory& memory, ncclComm_t comm, void* stream) = 0;
  virtual NcclResult receive(const NcclMemory& memory, ncclComm_t comm, void* stream) = 0;
};

// Loads the library, which stays loaded for the life of the process. Null when loading fails, with
// the reason in `why_not`.
std::unique_ptr<NcclApi> load_nccl(std::string& why_not);

}  // namespace sluice::zero
