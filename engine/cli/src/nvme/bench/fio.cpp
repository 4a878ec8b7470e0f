#include "nvme/bench/fio.hpp"

#include <fcntl.h>
#include <json/json.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/base/fd.hpp"
#include "sluice/base/json/json_reader.hpp"
#include "terminal/text_format.hpp"

extern char** environ;

namespace sluice::cli {

namespace {

constexpr std::string_view kTunables = "GLIBC_TUNABLES=";
constexpr std::string_view kHugePages = "glibc.malloc.hugetlb=1";

std::string fio_pattern(const NvmeBenchArguments& arguments) {
  const bool random = arguments.access == nvme::LoadAccess::random;
  switch (arguments.pattern) {
    case nvme::LoadPattern::read:
      return random ? "randread" : "read";
    case nvme::LoadPattern::write:
      return random ? "randwrite" : "write";
    case nvme::LoadPattern::mixed:
    case nvme::LoadPattern::swap:  // fio's nearest pattern: as many bytes each way
      break;
  }
  return random ? "randrw" : "rw";
}

std::vector<std::string> command_line(const NvmeBenchArguments& arguments,
                                      const BenchTarget& target, std::string_view backend) {
  std::vector<std::string> line = {
      "fio",
      "--name=peer",
      "--filename=" + target.file_path(),
      "--rw=" + fio_pattern(arguments),
      "--bs=" + std::to_string(arguments.block_bytes),
      "--size=" + std::to_string(target.size_bytes()),
      "--direct=" + std::string(target.file().direct() ? "1" : "0"),
      "--runtime=" + format_number("%.0f", 1e3 * arguments.slice_seconds) + "ms",
      "--time_based",
      "--invalidate=0",
      "--norandommap",
      "--randrepeat=0",
      "--group_reporting",
      "--thread",
      "--output-format=json"};
  if (backend == "threads") {
    // As many threads as our backend has, each with one request.
    line.insert(
        line.end(),
        {"--ioengine=psync", "--iodepth=1", "--numjobs=" + std::to_string(arguments.io_threads),
         "--offset_increment=" + std::to_string(target.size_bytes() / arguments.io_threads /
                                                arguments.block_bytes * arguments.block_bytes)});
  } else {
    line.insert(line.end(), {"--ioengine=" + std::string(backend),
                             "--iodepth=" + std::to_string(arguments.depth)});
  }
  return line;
}

// fio's buffers lie on huge pages, as our buffers do. Otherwise the drive splits fio's large
// blocks, and the figure is not the drive's limit. This setting replaces the user's setting of the
// allocator, if any.
std::vector<std::string> fio_environment() {
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!std::string_view(*variable).starts_with(kTunables)) environment.emplace_back(*variable);
  }
  environment.push_back(std::string(kTunables) + std::string(kHugePages));
  return environment;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

struct Output {
  int status = 0;
  std::string out;
};

// In the new process, where no memory may be allocated. Returns only when fio cannot be executed.
int execute(char** argv, char** environment, int output, pid_t parent) {
  constexpr int kNotStarted = 127;  // as shells have it
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kNotStarted);  // it ended before the line above
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  ::execvpe(argv[0], argv, environment);
  return errno;
}

// Starts fio, which dies with this program: it would go on to use the drive. posix_spawn cannot
// arrange that.
pid_t start(std::vector<std::string> line, int output) {
  std::array<int, 2> ends{};  // the new process says here why fio could not be executed
  SLUICE_SYSCALL(::pipe2(ends.data(), O_CLOEXEC), "pipe");
  const UniqueFd reads(ends[0]);
  UniqueFd writes(ends[1]);
  std::vector<std::string> environment = fio_environment();
  std::vector<char*> argv = pointers_to(line);
  std::vector<char*> variables = pointers_to(environment);
  const pid_t parent = ::getpid();
  const pid_t child = SLUICE_SYSCALL(::fork(), "fio");
  if (child == 0) {
    const int problem = execute(argv.data(), variables.data(), output, parent);
    [[maybe_unused]] const ssize_t said = ::write(writes.get(), &problem, sizeof problem);
    ::_exit(1);
  }
  writes.reset();
  int problem = 0;
  ssize_t got = 0;
  do {
    got = ::read(reads.get(), &problem, sizeof problem);
  } while (got < 0 && errno == EINTR);
  if (got == 0) return child;
  ::waitpid(child, nullptr, 0);
  if (problem == ENOENT) throw InvalidArgument("--fio: fio is not installed (package fio)");
  throw IoError(problem, "exec", "fio");
}

// Runs the command line and collects standard output and standard error together.
Output run_and_read(std::vector<std::string> line) {
  std::array<int, 2> ends{};
  SLUICE_SYSCALL(::pipe2(ends.data(), O_CLOEXEC), "pipe");
  UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const pid_t child = start(std::move(line), writing.get());
  writing.reset();
  Output output;
  std::array<char, 4096> block{};
  for (;;) {
    const ssize_t got = ::read(reading.get(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    output.out.append(block.data(), static_cast<std::size_t>(got));
  }
  while (::waitpid(child, &output.status, 0) < 0 && errno == EINTR) {
  }
  return output;
}

}  // namespace

void require_fio() {
  run_and_read({"fio", "--version"});
}

void FioSlice::add(const FioSlice& other) {
  seconds += other.seconds;
  bytes += other.bytes;
  requests += other.requests;
  cpu_seconds += other.cpu_seconds;
}

std::string fio_line(const NvmeBenchArguments& arguments, const BenchTarget& target,
                     std::string_view backend) {
  return std::string(kTunables) + std::string(kHugePages) + " " +
         shell_line(command_line(arguments, target, backend));
}

FioSlice run_fio(const NvmeBenchArguments& arguments, const BenchTarget& target,
                 std::string_view backend) {
  const Output output = run_and_read(command_line(arguments, target, backend));
  // fio may print notes before the object; what follows the object is passed over too.
  const std::size_t begin = output.out.find('{');
  std::optional<Json::Value> root;
  if (begin != std::string::npos)
    root = JsonReader(lenient_json()).read(std::string_view(output.out).substr(begin));
  if (output.status != 0 || !root || !(*root)["jobs"].isArray() || (*root)["jobs"].empty())
    throw Error("fio failed: " + valid_utf8(output.out.substr(0, 2000)));
  const Json::Value& job = (*root)["jobs"][0];
  FioSlice slice;
  for (const char* direction : {"read", "write"}) {
    const Json::Value& side = job[direction];
    slice.bytes += side["io_bytes"].asDouble();
    slice.requests += side["total_ios"].asDouble();
    slice.seconds = std::max(slice.seconds, 1e-3 * side["runtime"].asDouble());
  }
  // fio reports percent of one thread's time; for several threads the figure is their mean.
  const double threads = backend == "threads" ? arguments.io_threads : 1;
  slice.cpu_seconds =
      0.01 * (job["usr_cpu"].asDouble() + job["sys_cpu"].asDouble()) * slice.seconds * threads;
  return slice;
}

}  // namespace sluice::cli
