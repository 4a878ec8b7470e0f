#include "nccl/nccl_api.hpp"

#include "sluice/base/file/loaded_library.hpp"

namespace sluice::zero {

namespace {

constexpr const char* kLibrary = "libnccl.so.2";

// The functions by NCCL's own names and types.
struct Functions {
  decltype(&::ncclGetErrorString) error_string;
  decltype(&::ncclGetLastError) last_error;
  decltype(&::ncclGetUniqueId) get_unique_id;
  decltype(&::ncclCommInitRankConfig) init_rank;
  decltype(&::ncclCommGetAsyncError) async_error;
  decltype(&::ncclCommFinalize) finalize;
  decltype(&::ncclCommDestroy) destroy;
  decltype(&::ncclCommAbort) abort;
  decltype(&::ncclGroupStart) group_start;
  decltype(&::ncclGroupEnd) group_end;
  decltype(&::ncclAllGather) all_gather;
  decltype(&::ncclReduceScatter) reduce_scatter;
  decltype(&::ncclAllReduce) all_reduce;
  decltype(&::ncclBroadcast) broadcast;
  decltype(&::ncclReduce) reduce;
  decltype(&::ncclSend) send;
  decltype(&::ncclRecv) receive;
};

cudaStream_t stream_of(void* stream) {
  return static_cast<cudaStream_t>(stream);
}

class Nccl final : public NcclApi {
 public:
  explicit Nccl(const Functions& functions) : f_(functions) {}

  std::string error_text(ncclResult_t result, ncclComm_t comm) override {
    std::string text = f_.error_string(result);
    const char* more = f_.last_error(comm);
    return more == nullptr || *more == '\0' ? text : text + " (" + more + ")";
  }
  NcclResult get_unique_id(ncclUniqueId* id) override { return f_.get_unique_id(id); }
  NcclResult init_rank(ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank,
                       ncclConfig_t* config) override {
    return f_.init_rank(comm, ranks, id, rank, config);
  }
  NcclResult async_error(ncclComm_t comm, ncclResult_t* error) override {
    return f_.async_error(comm, error);
  }
  NcclResult finalize(ncclComm_t comm) override { return f_.finalize(comm); }
  NcclResult destroy(ncclComm_t comm) override { return f_.destroy(comm); }
  NcclResult abort(ncclComm_t comm) override { return f_.abort(comm); }
  NcclResult group_start() override { return f_.group_start(); }
  NcclResult group_end() override { return f_.group_end(); }
  NcclResult all_gather(const NcclMemory& m, ncclComm_t comm, void* stream) override {
    return f_.all_gather(m.from, m.to, m.count, m.type, comm, stream_of(stream));
  }
  NcclResult reduce_scatter(const NcclMemory& m, ncclComm_t comm, void* stream) override {
    return f_.reduce_scatter(m.from, m.to, m.count, m.type, ncclSum, comm, stream_of(stream));
  }
  NcclResult all_reduce(const NcclMemory& m, ncclComm_t comm, void* stream) override {
    return f_.all_reduce(m.from, m.to, m.count, m.type, ncclSum, comm, stream_of(stream));
  }
  NcclResult broadcast(const NcclMemory& m, ncclComm_t comm, void* stream) override {
    return f_.broadcast(m.from, m.to, m.count, m.type, m.peer, comm, stream_of(stream));
  }
  NcclResult reduce(const NcclMemory& m, ncclComm_t comm, void* stream) override {
    return f_.reduce(m.from, m.to, m.count, m.type, ncclSum, m.peer, comm, stream_of(stream));
  }
  NcclResult send(const NcclMemory& m, ncclComm_t comm, void* stream) override {
    return f_.send(m.from, m.count, m.type, m.peer, comm, stream_of(stream));
  }
  NcclResult receive(const NcclMemory& m, ncclComm_t comm, void* stream) override {
    return f_.receive(m.to, m.count, m.type, m.peer, comm, stream_of(stream));
  }

 private:
  const Functions f_;
};

}  // namespace

std::unique_ptr<NcclApi> load_nccl(std::string& why_not) {
  LoadedLibrary library(kLibrary, SLUICE_NCCL_FOLDER);
  Functions f{};
  library.find(f.error_string, "ncclGetErrorString");
  library.find(f.last_error, "ncclGetLastError");
  library.find(f.get_unique_id, "ncclGetUniqueId");
  library.find(f.init_rank, "ncclCommInitRankConfig");
  library.find(f.async_error, "ncclCommGetAsyncError");
  library.find(f.finalize, "ncclCommFinalize");
  library.find(f.destroy, "ncclCommDestroy");
  library.find(f.abort, "ncclCommAbort");
  library.find(f.group_start, "ncclGroupStart");
  library.find(f.group_end, "ncclGroupEnd");
  library.find(f.all_gather, "ncclAllGather");
  library.find(f.reduce_scatter, "ncclReduceScatter");
  library.find(f.all_reduce, "ncclAllReduce");
  library.find(f.broadcast, "ncclBroadcast");
  library.find(f.reduce, "ncclReduce");
  library.find(f.send, "ncclSend");
  library.find(f.receive, "ncclRecv");
  return library.make<Nccl>(f, why_not);
}

}  // namespace sluice::zero
