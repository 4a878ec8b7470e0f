#pragma once
// For tests in a child process: limits as a container sets them. A limit that cannot be set ends
// the child with exit code 126. Thread-safe: free functions.

#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>
#include <iterator>
#include <limits>
#include <string>

namespace sluice::test {

inline constexpr int kNotPermitted = 126;

// A child says with its exit code that it may not set what the test needs.
#define SLUICE_SKIP_IF_NOT_PERMITTED(result, what) \
  if ((result).exit_code == kNotPermitted) GTEST_SKIP() << (what) << " is not permitted here"

inline void in_child_check(bool done) {
  if (!done) ::_exit(kNotPermitted);
}

// Runs `body` in a child process and returns its result; a failure in the child becomes a text.
// Where another thread of this process may allocate meanwhile, `body` must not: with a sanitizer
// the child may find the allocator locked for ever.
inline std::string run_in_child(const std::function<std::string()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) return std::string("pipe: ") + std::strerror(errno);
  const pid_t child = ::fork();
  if (child < 0) return std::string("fork: ") + std::strerror(errno);
  if (child == 0) {
    std::string said;
    try {
      said = body();
    } catch (const std::exception& error) {
      said = std::string("threw ") + error.what();
    }
    const ssize_t written = ::write(ends[1], said.data(), said.size());
    ::_exit(written == static_cast<ssize_t>(said.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string said;
  char chunk[512];
  for (ssize_t n = 0; (n = ::read(ends[0], chunk, sizeof(chunk))) > 0;) {
    said.append(chunk, static_cast<std::size_t>(n));
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) said += " (the child died)";
  return said;
}

// Makes a system call fail with `error_number` in this process and the programs that it executes,
// like a container does, when the lower half of the call's `argument` (0: the first one) is at
// least `from` and at most `to`.
inline void deny(long system_call, int error_number, unsigned from = 0,
                 unsigned to = std::numeric_limits<unsigned>::max(), unsigned argument = 0) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(system_call), 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
               static_cast<unsigned>(offsetof(seccomp_data, args) + argument * sizeof(__u64))),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, from, 0, 2),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, to, 1, 0),
      BPF_STMT(BPF_RET | BPF_K,
               SECCOMP_RET_ERRNO | (static_cast<unsigned>(error_number) & SECCOMP_RET_DATA)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  in_child_check(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  in_child_check(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

// Sets the soft and the hard limit.
inline void limit_resource(decltype(RLIMIT_FSIZE) resource, rlim_t value) {
  const rlimit limit{value, value};
  in_child_check(::setrlimit(resource, &limit) == 0);
}

// Takes the right to lock memory beyond RLIMIT_MEMLOCK from this process and the programs that it
// executes, and sets that limit. The user stays root.
inline void limit_locked_memory(rlim_t limit_bytes) {
  in_child_check(::prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0) == 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2] = {};
  in_child_check(::syscall(SYS_capget, &header, sets) == 0);
  for (unsigned* set : {&sets[0].effective, &sets[0].permitted, &sets[0].inheritable})
    *set &= ~(1U << unsigned{CAP_IPC_LOCK});
  in_child_check(::syscall(SYS_capset, &header, sets) == 0);
  limit_resource(RLIMIT_MEMLOCK, limit_bytes);
}

// Makes this process that of a user without other processes, who owns no file.
inline void become_another_user() {
  constexpr uid_t kFirstUnusedUser = 64'000;
  const uid_t user = kFirstUnusedUser + static_cast<uid_t>(::getpid()) % 1000;
  in_child_check(::setgroups(0, nullptr) == 0 && ::setgid(user) == 0 && ::setuid(user) == 0);
}

// Likewise; that user may have `limit` processes and threads.
inline void limit_processes(rlim_t limit) {
  limit_resource(RLIMIT_NPROC, limit);
  become_another_user();
}

}  // namespace sluice::test
