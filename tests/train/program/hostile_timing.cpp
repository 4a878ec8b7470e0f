// Preloaded into the program (LD_PRELOAD): makes time pass at the worst moments. With
// SLUICE_TEST_DELAYS=SEED threads lose up to a millisecond at random where they hand work to each
// other, at locks and signals; with SLUICE_TEST_SLOW_DRIVE=N reads and writes of files take ten
// times as long after the first N of them (the backend "threads" only: others do not come by here).

#include <dlfcn.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

namespace {

std::atomic<std::uint64_t> draws{0};
std::atomic<std::uint64_t> transfers{0};

std::uint64_t number_in(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

template <typename Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

void sleep_ns(std::uint64_t nanoseconds) {
  const timespec time{static_cast<time_t>(nanoseconds / 1'000'000'000),
                      static_cast<long>(nanoseconds % 1'000'000'000)};
  ::nanosleep(&time, nullptr);
}

// One call in 96 waits.
void lose_time() {
  static const std::uint64_t seed = number_in("SLUICE_TEST_DELAYS");
  if (seed == 0) return;
  std::uint64_t x = (draws.fetch_add(1) + 1) * 0x9E3779B97F4A7C15U + seed;  // splitmix64
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  x ^= x >> 31U;
  if (x % 96 == 0) sleep_ns((x >> 8U) % 1'000'000);
}

template <typename Call>
ssize_t transfer(const Call& call) {
  static const std::uint64_t fast = number_in("SLUICE_TEST_SLOW_DRIVE");
  if (fast == 0 || transfers.fetch_add(1) < fast) return call();
  timespec begin{};
  ::clock_gettime(CLOCK_MONOTONIC, &begin);
  const ssize_t result = call();
  timespec end{};
  ::clock_gettime(CLOCK_MONOTONIC, &end);
  sleep_ns(9 * static_cast<std::uint64_t>((end.tv_sec - begin.tv_sec) * 1'000'000'000 +
                                          end.tv_nsec - begin.tv_nsec));
  return result;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static const auto call = real<int (*)(pthread_mutex_t*)>("pthread_mutex_lock");
  lose_time();
  return call(mutex);
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  static const auto call = real<int (*)(pthread_cond_t*)>("pthread_cond_broadcast");
  lose_time();
  return call(condition);
}

// Programs that are built for files of any size call these.
ssize_t pread64(int fd, void* data, size_t size, off64_t offset) {
  static const auto call = real<ssize_t (*)(int, void*, size_t, off64_t)>("pread64");
  return transfer([&] { return call(fd, data, size, offset); });
}

ssize_t pwrite64(int fd, const void* data, size_t size, off64_t offset) {
  static const auto call = real<ssize_t (*)(int, const void*, size_t, off64_t)>("pwrite64");
  return transfer([&] { return call(fd, data, size, offset); });
}

ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  return pread64(fd, data, size, offset);
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  return pwrite64(fd, data, size, offset);
}
}
#pragma GCC visibility pop
