#include "launch/launched_ranks.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <utility>

#include "launch/mpi_rank.hpp"
#include "process/exit_code.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/time/elapsed.hpp"

namespace sluice::cli {

namespace {

// For ranks that end because another failed, and for mpirun after its ranks.
constexpr double kEndSeconds = 5;

// For mpirun to remove its folder and the ranks' shared memory, when all is to end at once. It
// gives its ranks a second itself.
constexpr double kClearSeconds = 3;

// For a reader of standard error who is slow, before a line of the launcher is left out.
constexpr int kSayMilliseconds = 500;

constexpr std::size_t index_of(Stream stream) {
  return static_cast<std::size_t>(stream);
}

std::chrono::steady_clock::duration to_duration(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds));
}

void open_pipe(UniqueFd& reads, UniqueFd& writes) {
  int ends[2];
  SLUICE_SYSCALL(::pipe2(ends, O_CLOEXEC), "a pipe");
  reads = UniqueFd(ends[0]);
  writes = UniqueFd(ends[1]);
  SLUICE_SYSCALL(::fcntl(ends[0], F_SETFL, O_NONBLOCK), "a pipe");
}

std::string signal_name(int number) {
  const char* const name = ::sigabbrev_np(number);
  return name == nullptr ? "signal " + std::to_string(number) : "SIG" + std::string(name);
}

}  // namespace

LaunchedRanks::LaunchedRanks(GroupOptions options)
    : options_(std::move(options)), output_(options_.out_fd, STDERR_FILENO) {
  for (int rank = 0; rank < options_.ranks; ++rank) {
    const std::string name = "rank " + std::to_string(rank);
    const std::string log = options_.log_directory.empty()
                                ? ""
                                : options_.log_directory + "/rank-" + std::to_string(rank) + ".log";
    ranks_.push_back(std::make_unique<Member>(RankOutput(
        "[" + name + "] ", log,
        [this](Stream stream, std::string_view lines) { output_.push(stream, lines); })));
  }
}

LaunchedRanks::~LaunchedRanks() {
  kill_all();
  kill_carrier();
  const auto reap_own = [](const Member& member) {
    if (member.is_running()) ::waitpid(member.process, nullptr, 0);  // no child: mpirun's rank
  };
  for (const auto& member : ranks_) reap_own(*member);
  if (carrier_) reap_own(*carrier_);
}

void LaunchedRanks::open_streams(Member& member) {
  for (const Stream stream : {Stream::out, Stream::err})
    open_pipe(member.reads[index_of(stream)], member.writes[index_of(stream)]);
}

void LaunchedRanks::start(Member& member, ChildProcess child) {
  open_streams(member);
  child.out = member.writes[index_of(Stream::out)].get();
  child.err = member.writes[index_of(Stream::err)].get();
  member.process = start_process(child);
  guardian_.watch(member.process);
  for (UniqueFd& end : member.writes) end.reset();
}

void LaunchedRanks::start_rank(int rank, ChildProcess child) {
  start(*ranks_[static_cast<std::size_t>(rank)], std::move(child));
}

std::string LaunchedRanks::open_pipes() {
  open_pipe(status_reads_, status_writes_);
  RankPipes pipes{::getpid(), status_writes_.get(), {}};
  for (const auto& member : ranks_) {
    open_streams(*member);
    pipes.ranks.push_back({member->writes[0].get(), member->writes[1].get()});
  }
  return to_text(pipes);
}

void LaunchedRanks::start_carrier(ChildProcess child) {
  carrier_name_ = child.argv.front();
  const std::string prefix = ranks_.empty() ? "" : "[" + carrier_name_ + "] ";
  carrier_ = std::make_unique<Member>(RankOutput(
      prefix, "", [this](Stream stream, std::string_view lines) { output_.push(stream, lines); }));
  start(*carrier_, std::move(child));
}

GroupEnd LaunchedRanks::run() {
  while (!is_done()) {
    wait();
    signals_.clear();
    react_to_signals();
    // A rank that writes without end leaves time for signals and for the others.
    for (const auto& member : ranks_)
      if (!output_.is_full()) read_some(*member);
    if (carrier_ && !output_.is_full()) read_some(*carrier_);
    read_status();
    reap_all();
    output_.flush();
    check_output();
    check_deadline();
  }
  GroupEnd end;
  end.seconds = seconds_since(began_);
  end.signal_number = signals_.first();
  end.failed = std::move(failed_);
  if (log_error_ && !end.failed) throw IoError(*log_error_);
  if (log_error_) options_.say(log_error_->what());  // the rank failed before
  if (output_.error() == EPIPE) {
    end.signal_number = SIGPIPE;  // the reader of the output is gone
  } else if (output_.error() != 0) {
    throw IoError(output_.error(), "write", "standard output");
  }
  if (end.failed) end.exit_code = end.failed->exit_code;
  if (end.signal_number != 0) end.exit_code = exit_code_of_signal(end.signal_number);
  return end;
}

bool LaunchedRanks::all_ended() const {
  const bool ranks_ended =
      std::all_of(ranks_.begin(), ranks_.end(), [](const auto& member) { return member->ended; });
  return ranks_ended && (!carrier_ || carrier_->ended);
}

bool LaunchedRanks::is_done() const {
  return all_ended() && (output_.is_empty() || abandons_output_);
}

int LaunchedRanks::wait_milliseconds() const {
  if (!deadline_) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline_ - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000'000));
}

void LaunchedRanks::wait() {
  std::vector<pollfd> all = {{signals_.fd(), POLLIN, 0}};
  if (status_reads_) all.push_back({status_reads_.get(), POLLIN, 0});
  if (!output_.is_empty()) all.push_back(output_.awaited());
  const auto add = [&](const Member& member) {
    if (output_.is_full()) return;  // its writer waits for the reader, as without this program
    for (const UniqueFd& fd : member.reads)
      if (fd) all.push_back({fd.get(), POLLIN, 0});
  };
  for (const auto& member : ranks_) add(*member);
  if (carrier_) add(*carrier_);
  ::poll(all.data(), all.size(), wait_milliseconds());  // EINTR: the signal's byte is there
}

void LaunchedRanks::read_available(Member& member) {
  while (read_some(member)) {
  }
}

bool LaunchedRanks::read_some(Member& member) {
  bool any = false;
  char bytes[64U << 10U];
  for (const Stream stream : {Stream::out, Stream::err}) {
    UniqueFd& fd = member.reads[index_of(stream)];
    if (!fd) continue;
    const ssize_t got = ::read(fd.get(), bytes, sizeof bytes);
    if (got > 0) take_output(member, stream, {bytes, static_cast<std::size_t>(got)});
    if (got == 0) fd.reset();
    any = any || got > 0 || (got < 0 && errno == EINTR);  // EAGAIN: nothing more for now
  }
  return any;
}

// An error must not end the ranks without their grace, so run() throws it after their end.
void LaunchedRanks::take_output(Member& member, Stream stream, std::string_view bytes) {
  try {
    member.output.take(stream, bytes);
  } catch (const IoError& error) {
    if (!log_error_) log_error_ = error;
  }
}

void LaunchedRanks::check_output() {
  if (!has_output_failed() || deadline_ || killed_ || all_ended()) return;
  stop(SIGTERM, options_.grace_seconds);
  if (output_.error() == EPIPE) return;
  std::ostringstream line;
  line << (log_error_ ? log_error_->what() : "standard output cannot be written")
       << "; the ranks have " << options_.grace_seconds << " s to end";
  say(line.str());
}

// Leaves the line out when nobody reads standard error. poll() promises room for a short line.
void LaunchedRanks::say(const std::string& line) const {
  pollfd ready = {STDERR_FILENO, POLLOUT, 0};
  int found = 0;
  do {
    found = ::poll(&ready, 1, kSayMilliseconds);
  } while (found < 0 && errno == EINTR);
  if (found == 1) options_.say(line);
}

// Lines of mpi_rank.hpp: what each rank of mpirun is and how it ended.
void LaunchedRanks::read_status() {
  if (!status_reads_) return;
  char bytes[4096];
  ssize_t got = 0;
  while ((got = ::read(status_reads_.get(), bytes, sizeof bytes)) > 0)
    status_.append(bytes, static_cast<std::size_t>(got));
  std::size_t end = 0;
  while ((end = status_.find('\n')) != std::string::npos) {
    const RankStatus status = parse_status(status_.substr(0, end));
    status_.erase(0, end + 1);
    SLUICE_CHECK(status.rank >= 0 && status.rank < options_.ranks,
                 "mpirun started rank " + std::to_string(status.rank) + " of " +
                     std::to_string(options_.ranks));
    Member& member = *ranks_[static_cast<std::size_t>(status.rank)];
    if (status.end) {
      take_end(status.rank, *status.end);
    } else {
      member.process = status.process;
      guardian_.watch(member.process);
      // It began after the others were told to end.
      if (deadline_ || killed_) signal_group(member.process, killed_ ? SIGKILL : SIGTERM);
    }
  }
}

void LaunchedRanks::reap_all() {
  if (!carrier_) {
    for (int rank = 0; rank < options_.ranks; ++rank) {
      const Member& member = *ranks_[static_cast<std::size_t>(rank)];
      if (!member.is_running()) continue;
      if (const auto end = reap(member.process)) take_end(rank, *end);
    }
    return;
  }
  if (!carrier_->is_running()) return;
  if (const auto end = reap(carrier_->process)) take_carrier_end(*end);
}

void LaunchedRanks::take_end(int rank, const ProcessEnd& end) {
  Member& member = *ranks_[static_cast<std::size_t>(rank)];
  if (member.ended) return;
  read_available(member);  // all that it wrote is in the pipes
  member.output.finish();
  member.ended = true;
  for (UniqueFd& fd : member.reads) fd.reset();
  if (member.process > 0) guardian_.forget(member.process);
  if (end.exit_code() != 0) fail({rank, end.exit_code(), end.text(), member.output.last_lines()});
  const bool ranks_ended =
      std::all_of(ranks_.begin(), ranks_.end(), [](const auto& other) { return other->ended; });
  if (ranks_ended && carrier_ && !killed_) deadline_ = Clock::now() + to_duration(kEndSeconds);
}

// mpirun ended. Ranks of which no end is known ended with it, or never began.
void LaunchedRanks::take_carrier_end(const ProcessEnd& end) {
  carrier_->ended = true;
  guardian_.forget(carrier_->process);
  read_available(*carrier_);
  carrier_->output.finish();
  read_status();
  if (ranks_.empty() && end.exit_code() != 0)
    fail({-1, end.exit_code(), end.text(), carrier_->output.last_lines()});
  for (int rank = 0; rank < options_.ranks; ++rank) {
    Member& member = *ranks_[static_cast<std::size_t>(rank)];
    if (member.ended) continue;
    const bool began = member.process > 0;
    if (began) signal_group(member.process, SIGKILL);
    read_available(member);
    const int code = end.exit_code() == 0 ? kExitOther : end.exit_code();
    fail({rank, code, (began ? "ended with mpirun, which " : "never began: mpirun ") + end.text(),
          began ? member.output.last_lines() : carrier_->output.last_lines()});
    member.output.finish();
    member.ended = true;
    if (began) guardian_.forget(member.process);
  }
}

// Keeps the first failure. After a signal, ranks end because of it.
void LaunchedRanks::fail(FailedRank failed) {
  if (failed_ || passed_on_ || has_output_failed()) return;
  failed_ = std::move(failed);
  if (!all_ended()) stop(SIGTERM, kEndSeconds);
}

void LaunchedRanks::react_to_signals() {
  if (signals_.count() == 0) return;
  // The reader of the output may never read. After the first signal it has the grace to do so.
  if (signals_.count() > 1 || (all_ended() && !passed_on_)) abandons_output_ = true;
  if (killed_ || all_ended()) return;
  if (signals_.count() > 1) {
    kill_all();
  } else if (!passed_on_) {
    passed_on_ = true;
    stop(signals_.first(), options_.grace_seconds);
    std::ostringstream line;
    line << signal_name(signals_.first()) << ": passed on to ";
    if (ranks_.empty() && options_.carrier_signal == 0)
      line << carrier_name_ << ", which may end its ranks within a second";
    else
      line << "the ranks, which have " << options_.grace_seconds << " s to end";
    line << "; a second signal ends them at once";
    say(line.str());
  }
}

void LaunchedRanks::check_deadline() {
  if (!deadline_ || Clock::now() < *deadline_) return;
  if (killed_) return kill_carrier();
  kill_all();
  if (passed_on_) abandons_output_ = true;
}

void LaunchedRanks::stop(int signal_number, double grace_seconds) {
  deadline_ = Clock::now() + to_duration(grace_seconds);
  bool all_began = true;
  for (const auto& member : ranks_) {
    if (member->is_running()) signal_group(member->process, signal_number);
    all_began = all_began && member->process > 0;
  }
  const bool carrier_too = carrier_ && carrier_->is_running() && (ranks_.empty() || !all_began);
  if (!carrier_too) return;
  if (ranks_.empty() && options_.carrier_signal != 0)
    ::kill(carrier_->process, options_.carrier_signal);  // not its ssh, which would end
  else
    signal_group(carrier_->process, ranks_.empty() ? signal_number : SIGTERM);
}

void LaunchedRanks::kill_all() {
  killed_ = true;
  deadline_.reset();
  for (const auto& member : ranks_)
    if (member->is_running()) signal_group(member->process, SIGKILL);
  if (!carrier_ || !carrier_->is_running()) return;
  if (ranks_.empty()) return kill_carrier();
  signal_group(carrier_->process, SIGTERM);
  deadline_ = Clock::now() + to_duration(kClearSeconds);
}

void LaunchedRanks::kill_carrier() {
  deadline_.reset();
  if (carrier_ && carrier_->is_running()) signal_group(carrier_->process, SIGKILL);
}

}  // namespace sluice::cli
