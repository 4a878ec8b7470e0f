// Runs a fuzz target over a corpus and its mutations, where libFuzzer is not there to do so:
//   TARGET CORPUS COUNT [SEED]           each file of the folder CORPUS, then COUNT mutations
//   TARGET CORPUS only N SEED [OUT]      mutation N again; its bytes are written to OUT
//   TARGET FILE...                       these files
// A run fails when the target crashes or throws, works longer than the limit on one file, or takes
// more memory than the file's size allows. The failing mutation is named, so that `only` repeats
// it.

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include <sys/time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#include "allocations.hpp"
#include "mutator.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size_bytes);

namespace sluice::fuzz {
namespace {

constexpr std::size_t kMostInputBytes = 1U << 20U;
// Limits of an input: seconds of the processor, and of the clock. The latter is ample for a machine
// that others use too.
constexpr long kMostCpuSeconds = 5;
constexpr unsigned kMostClockSeconds = 60;
// One allocation: twice the file, and what a short file takes. The most is a path of 4 KiB that
// std::filesystem splits into 2,000 components: 105 KiB.
constexpr std::size_t kFileFactor = 2;
constexpr std::size_t kConstantBytes = 128U << 10U;
// All memory at once: JsonCpp keeps a value in 112 bytes (a node of its map), of two bytes of text.
constexpr std::size_t kPeakFileFactor = 80;
constexpr std::size_t kPeakConstantBytes = 1U << 20U;

// The file at work, for the handler of signals: no allocation, no lock.
char at_work[512] = "nothing";

void say(const char* what) {
  const char* const parts[] = {"fuzz: ", what, " while reading ", at_work, "\n"};
  for (const char* part : parts) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, part, std::strlen(part));
  }
}

extern "C" void on_signal(int number) {
  say(number == SIGPROF || number == SIGALRM ? "took too long" : "crashed");
  std::signal(number, SIG_DFL);
  std::raise(number);
}

void set_limits(long cpu_seconds, unsigned clock_seconds) {
  itimerval timer{};
  timer.it_value.tv_sec = cpu_seconds;
  ::setitimer(ITIMER_PROF, &timer, nullptr);
  ::alarm(clock_seconds);
}

bool takes_too_much(const Allocations& taken, std::size_t file_bytes) {
  const std::size_t largest_limit = kFileFactor * file_bytes + kConstantBytes;
  const std::size_t peak_limit = kPeakFileFactor * file_bytes + kPeakConstantBytes;
  if (taken.largest_bytes <= largest_limit && taken.peak_bytes <= peak_limit) return false;
  std::cerr << "fuzz: " << at_work << ", " << file_bytes << " bytes, takes " << taken.largest_bytes
            << " bytes in one allocation (limit " << largest_limit << ") and " << taken.peak_bytes
            << " in all (limit " << peak_limit << ")\n";
  return true;
}

// Whether the target takes the file as it should.
bool run_one(const std::string& bytes, const std::string& name) {
  std::snprintf(at_work, sizeof(at_work), "%s", name.c_str());
  set_limits(kMostCpuSeconds, kMostClockSeconds);
  begin_counting_allocations();
  bool good = true;
  try {
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  } catch (const std::exception& error) {
    std::cerr << "fuzz: " << name << ": an error that is none of Sluice's: " << error.what()
              << "\n";
    good = false;
  }
  const Allocations taken = end_counting_allocations();
  set_limits(0, 0);
  return good && !takes_too_much(taken, bytes.size());
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + " cannot be read");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string mutation(const std::vector<std::string>& seeds, std::uint64_t seed,
                     std::uint64_t number) {
  return Mutator(seed * 1'000'003 + number, kMostInputBytes).mutated(seeds);
}

int run_folder(const std::string& folder, const std::vector<std::string>& arguments) {
  std::vector<std::string> seeds;
  int failures = 0;
  for (const std::string& path : files_of(folder)) {
    seeds.push_back(read_file(path));
    if (!run_one(seeds.back(), path)) ++failures;
  }
  if (seeds.empty()) throw std::runtime_error(folder + " has no files");
  if (arguments.at(0) == "only") {
    const std::string bytes =
        mutation(seeds, std::stoull(arguments.at(2)), std::stoull(arguments.at(1)));
    if (arguments.size() > 3) std::ofstream(arguments[3], std::ios::binary) << bytes;
    return run_one(bytes, "this mutation") ? 0 : 1;
  }
  const std::uint64_t count = std::stoull(arguments.at(0));
  const std::uint64_t seed = arguments.size() > 1 ? std::stoull(arguments[1]) : 20260611;
  for (std::uint64_t i = 0; i < count && failures < 10; ++i) {
    const std::string name = "mutation " + std::to_string(i) + " of seed " + std::to_string(seed);
    if (!run_one(mutation(seeds, seed, i), name)) ++failures;
  }
  std::cout << seeds.size() << " files and " << count << " mutations of seed " << seed << ": "
            << failures << " failures\n";
  return failures == 0 ? 0 : 1;
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() >= 2 && std::filesystem::is_directory(arguments[0])) {
    return run_folder(arguments[0], {arguments.begin() + 1, arguments.end()});
  }
  int failures = 0;
  for (const std::string& path : arguments) failures += run_one(read_file(path), path) ? 0 : 1;
  return failures == 0 && !arguments.empty() ? 0 : 1;
}

}  // namespace
}  // namespace sluice::fuzz

int main(int argc, char** argv) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_death_callback([] { sluice::fuzz::say("died"); });
#else
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    std::signal(number, &sluice::fuzz::on_signal);
  }
#endif
  for (const int number : {SIGPROF, SIGALRM}) std::signal(number, &sluice::fuzz::on_signal);
  try {
    return sluice::fuzz::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "fuzz: " << error.what() << "\n";
    return 2;
  }
}
