#include "nccl/nccl_api.hpp"

#include <dlfcn.h>

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

// By the loader, else from where the library was when this was built.
void* open_library(std::string& why_not) {
  for (const std::string& name : {std::string(kLibrary), std::string(SLUICE_NCCL_LIBRARY)})
    if (void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  const char* error = ::dlerror();
  why_not = error == nullptr ? std::string(kLibrary) + " cannot be loaded" : error;
  return nullptr;
}

class Finder {
 public:
  explicit Finder(void* library) : library_(library) {}
  template <typename Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
    if (function == nullptr && missing_.empty()) missing_ = name;
  }
  const std::string& missing() const { return missing_; }

 private:
  void* library_;
  std::string missing_;
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
  void* library = open_library(why_not);
  if (library == nullptr) return nullptr;
  Functions f{};
  Finder finder(library);
  finder.find(f.error_string, "ncclGetErrorString");
  finder.find(f.last_error, "ncclGetLastError");
  finder.find(f.get_unique_id, "ncclGetUniqueId");
  finder.find(f.init_rank, "ncclCommInitRankConfig");
  finder.find(f.async_error, "ncclCommGetAsyncError");
  finder.find(f.finalize, "ncclCommFinalize");
  finder.find(f.destroy, "ncclCommDestroy");
  finder.find(f.abort, "ncclCommAbort");
  finder.find(f.group_start, "ncclGroupStart");
  finder.find(f.group_end, "ncclGroupEnd");
  finder.find(f.all_gather, "ncclAllGather");
  finder.find(f.reduce_scatter, "ncclReduceScatter");
  finder.find(f.all_reduce, "ncclAllReduce");
  finder.find(f.broadcast, "ncclBroadcast");
  finder.find(f.reduce, "ncclReduce");
  finder.find(f.send, "ncclSend");
  finder.find(f.receive, "ncclRecv");
  if (finder.missing().empty()) return std::make_unique<Nccl>(f);
  why_not = std::string(kLibrary) + " has no " + finder.missing();
  return nullptr;
}

}  // namespace sluice::zero
