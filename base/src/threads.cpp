#include "sluice/base/threads.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/base/text.hpp"

namespace sluice {

namespace {

constexpr int kBackgroundNice = 10;  // more than others: a tenth of their weight
constexpr int kMostNice = 19;
constexpr const char* kHowToRaise =
    "; a control group may have a lower pids.max. Raise the limit (ulimit -u; --pids-limit of a "
    "container; TasksMax= of a service)";

// Threads that wait until the object is destroyed. Confined to thread: its maker.
class WaitingThreads {
 public:
  ~WaitingThreads() {
    {
      MutexLock lock(mutex_);
      ending_ = true;
      changed_.notify_all();
    }
    for (const pthread_t thread : threads_) ::pthread_join(thread, nullptr);
  }

  // Starts one more; returns 0 or an errno.
  int add() {
    // Small stacks, so that a limit on address space (ulimit -v) does not count here. EINVAL: the
    // variables that the program's libraries keep in each thread do not fit into the stack.
    constexpr std::size_t kLeastStackBytes = std::size_t{128} * 1024;
    constexpr std::size_t kMostStackBytes = std::size_t{16} * 1024 * 1024;
    int error_number = EINVAL;
    for (std::size_t size = kLeastStackBytes; error_number == EINVAL && size <= kMostStackBytes;
         size *= 2)
      error_number = add_with_stack(size);
    return error_number;
  }
  std::size_t size() const { return threads_.size(); }

 private:
  int add_with_stack(std::size_t stack_bytes) {
    threads_.reserve(threads_.size() + 1);
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    ::pthread_attr_setstacksize(&attributes, stack_bytes);
    pthread_t thread{};
    const int error_number = ::pthread_create(&thread, &attributes, &wait, this);
    ::pthread_attr_destroy(&attributes);
    if (error_number == 0) threads_.push_back(thread);
    return error_number;
  }
  static void* wait(void* self) {
    auto& group = *static_cast<WaitingThreads*>(self);
    MutexLock lock(group.mutex_);
    while (!group.ending_) group.changed_.wait(group.mutex_);
    return nullptr;
  }

  Mutex mutex_;
  CondVar changed_;
  bool ending_ SLUICE_GUARDED_BY(mutex_) = false;
  std::vector<pthread_t> threads_;
};

std::string nproc_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NPROC, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return "not limited";
  return std::to_string(limit.rlim_cur);
}

// pthread_create answers EAGAIN also when it cannot map a stack.
std::string memory_limits() {
  std::string text = ". Memory for its stack may be short instead";
  const char* before = ": ";
  const auto add = [&](auto resource, const char* name, const char* how) {
    rlimit limit{};
    if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    text += before + std::string(name) + " is " + format_bytes(limit.rlim_cur) + " (" + how + ")";
    before = ", ";
  };
  add(RLIMIT_AS, "RLIMIT_AS", "ulimit -v");
  add(RLIMIT_DATA, "RLIMIT_DATA", "ulimit -d");
  return text;
}

// Why the system refuses a thread, and what to do; `more` is advice where a limit is met.
std::string why_refused(int error_number, const std::string& more = "") {
  const std::string reason = std::string(" (") + std::strerror(error_number) + "). ";
  if (error_number == EPERM)  // of no limit: those are EAGAIN
    return reason +
           "A seccomp filter denies it, as older container runtimes do with newer C libraries; "
           "update the runtime, or run with a profile that allows clone and clone3 (Docker: "
           "--security-opt seccomp=PROFILE.json)";
  return reason + "RLIMIT_NPROC, which counts all processes of user " + std::to_string(::getuid()) +
         ", is " + nproc_limit() + kHowToRaise + more + memory_limits();
}

}  // namespace

void take_priority(ThreadPriority priority) noexcept {
  thread_local bool is_background = false;
  if (priority != ThreadPriority::background || is_background) return;
  is_background = true;
  // On Linux the process of a thread's number is that thread alone.
  const auto thread = static_cast<id_t>(::gettid());
  const int now = ::getpriority(PRIO_PROCESS, thread);
  (void)::setpriority(PRIO_PROCESS, thread, std::min(now + kBackgroundNice, kMostNice));
}

std::optional<int> allowed_cores() {
  // The kernel answers EINVAL when the set is smaller than its own.
  constexpr int kMostCores = 1 << 16;
  for (int cores = CPU_SETSIZE; cores <= kMostCores; cores *= 4) {
    const std::size_t size_bytes = CPU_ALLOC_SIZE(cores);
    std::vector<cpu_set_t> set(size_bytes / sizeof(cpu_set_t));
    if (::sched_getaffinity(0, size_bytes, set.data()) == 0)
      return CPU_COUNT_S(size_bytes, set.data());
    if (errno != EINVAL) break;
  }
  return std::nullopt;
}

std::thread start_thread(const std::string& name, std::function<void()> body) {
  try {
    std::thread thread(std::move(body));
    ::pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());
    return thread;
  } catch (const std::system_error& error) {
    throw Error("the system refuses the thread " + name + why_refused(error.code().value()));
  }
}

void check_threads(int count) {
  WaitingThreads threads;
  for (int i = 0; i < count; ++i) {
    const int error_number = threads.add();
    if (error_number == 0) continue;
    throw Error("the system gives this process " + std::to_string(threads.size()) + " of the " +
                std::to_string(count) + " threads that it needs beside the main one" +
                why_refused(error_number, ", or ask for fewer with \"sluice\": {\"threads\"}"));
  }
}

std::uint64_t fork_count() noexcept {
  static std::atomic<std::uint64_t> forks{0};
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { ++forks; });
  return forks.load();
}

}  // namespace sluice
