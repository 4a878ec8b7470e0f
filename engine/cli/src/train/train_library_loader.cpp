#include "train/train_library_loader.hpp"

#include <dlfcn.h>
#include <sched.h>
#include <sys/resource.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/plan/machine.hpp"

namespace sluice::cli {

namespace {

constexpr const char* kFileName = "libsluice_train.so";
// The program finds its libraries by its own place, which the system tells there.
constexpr std::string_view kNoProc = "/proc is not mounted";

std::string last_dl_error() {
  const char* text = ::dlerror();
  return text == nullptr ? "no reason given" : text;
}

}  // namespace

std::string find_library(const char* name, std::string& why) {
  std::error_code error;
  const std::filesystem::path executable = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    why = error == std::errc::no_such_file_or_directory ? std::string(kNoProc)
                                                        : "/proc/self/exe: " + error.message();
    return "";
  }
  const std::filesystem::path root = executable.parent_path().parent_path();
  // The build's folder, and where the library is installed (lib, lib64, lib/x86_64-linux-gnu).
  const std::array<std::filesystem::path, 2> candidates = {root / "lib" / name,
                                                           root / SLUICE_INSTALL_LIBDIR / name};
  for (const std::filesystem::path& candidate : candidates) {
    if (std::filesystem::exists(candidate, error)) return candidate.string();
  }
  why = "there is no " + candidates.front().string();
  return "";
}

std::string find_train_library(std::string& why) {
  return find_library(kFileName, why);
}

namespace {

// LibTorch ends the process when it cannot map its memory, so the limit is checked before loading.
void check_address_space() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  if (limit.rlim_cur >= plan::kProgramAddressSpaceBytes) return;
  throw DoesNotFit("this process may map " + format_bytes(limit.rlim_cur) +
                   " of address space (ulimit -v), its libraries need about " +
                   format_bytes(plan::kProgramAddressSpaceBytes) + ": raise the limit");
}

// The kernel ends a process whose stack is too small, without a word. 96 KiB were enough.
void check_stack() {
  constexpr rlim_t kLeastBytes = rlim_t{128} * 1024;
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kLeastBytes) return;
  throw DoesNotFit("this process may have a stack of " + format_bytes(limit.rlim_cur) +
                   " (ulimit -s), training needs up to " + format_bytes(kLeastBytes) +
                   ": raise the limit");
}

// LibTorch's kernels divide their work by the number of threads that they request. With fewer
// threads the kernels silently skip part of the work; the loss is then off in its third digit.
void check_openmp() {
  for (const char* name : {"OMP_THREAD_LIMIT", "OMP_DYNAMIC"}) {
    const char* value = std::getenv(name);
    if (value == nullptr ||
        (std::string_view(name) == "OMP_DYNAMIC" &&
         (std::string_view(value) == "false" || std::string_view(value) == "FALSE"))) {
      continue;
    }
    throw InvalidArgument(
        std::string(name) + "=" + value +
        " is set in the environment: with fewer threads than they ask for LibTorch's "
        "kernels give wrong results; unset it, and choose the threads with \"sluice\": "
        "{\"threads\": {\"compute\": N}}");
  }
}

// Threads of OpenMP that wait for work spin for milliseconds by default, on the cores that updates,
// copies and I/O need: with more runs than cores a step takes many times as long. Without a spin
// they sleep in the kernel after each small operator. So they spin for some 25 us, about as long as
// falling asleep and waking up take, and then sleep. OpenMP reads the variables when LibTorch is
// loaded. A user's own settings stay. python/sluice/_environment/openmp.py does this for Python.
void set_openmp_waits() {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  ::setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/1);
  ::setenv("GOMP_SPINCOUNT", "1000", /*overwrite=*/0);
}

// With OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY set, OpenMP binds the thread that loads it to
// one core. All threads started later would inherit that core. This object gives the thread back
// the cores it had. OpenMP's own threads stay bound. Confined to thread: main.
class KeptCores {
 public:
  KeptCores() {
    constexpr int kMostCores = 1 << 16;  // the kernel refuses a set smaller than its own
    for (int cores = CPU_SETSIZE; cores <= kMostCores; cores *= 4) {
      set_.assign(CPU_ALLOC_SIZE(cores) / sizeof(cpu_set_t), cpu_set_t{});
      if (::sched_getaffinity(0, size_bytes(), set_.data()) == 0) return;
      if (errno != EINVAL) break;
    }
    set_.clear();
  }
  ~KeptCores() {
    if (!set_.empty()) ::sched_setaffinity(0, size_bytes(), set_.data());
  }
  KeptCores(const KeptCores&) = delete;
  KeptCores& operator=(const KeptCores&) = delete;

 private:
  std::size_t size_bytes() const { return set_.size() * sizeof(cpu_set_t); }

  std::vector<cpu_set_t> set_;
};

// LibTorch's libraries end the process there, and name something else.
void check_working_directory() {
  std::error_code error;
  static_cast<void>(std::filesystem::current_path(error));
  SLUICE_CHECK(error != std::errc::no_such_file_or_directory,
               "the working directory was removed: cd to one that exists");
}

template <class Function>
Function function_of(void* library, const std::string& path, const char* name) {
  // dlsym returns an object pointer by definition; POSIX guarantees the conversion.
  const auto function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function != nullptr) return function;
  throw Error(path + " is not this program's training library: " + last_dl_error() +
              ". Build both again with scripts/build.sh");
}

}  // namespace

train::TrainLibrary& load_train_library() {
  check_working_directory();
  check_address_space();
  check_stack();
  check_openmp();
  std::string why;
  const std::string path = find_train_library(why);
  if (why == kNoProc)
    throw Error(
        why +
        ", and the program finds its training library by it: mount it (mount -t proc proc /proc)");
  if (path.empty()) {
    throw Error(
        "this build has no LibTorch: " + why +
        ". Install LibTorch with scripts/setup.sh, then build again with scripts/build.sh; an "
        "installation needs the component train too");
  }
  set_openmp_waits();
  const KeptCores kept_cores;
  // RTLD_LOCAL: LibTorch's symbols must not replace the program's own.
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw Error("cannot load " + path + ": " + last_dl_error() +
                ". If LibTorch was moved or removed: scripts/setup.sh, then scripts/build.sh");
  }
  const auto stamp = function_of<train::TrainStampEntry>(library, path, train::kTrainStampName);
  if (std::string_view(stamp()) != train::own_train_stamp()) {
    throw Error(path +
                " is of another build than this program: build both again with "
                "scripts/build.sh, or install both again");
  }
  return *function_of<train::TrainLibraryEntry>(library, path, train::kTrainLibraryEntryName)();
}

}  // namespace sluice::cli
