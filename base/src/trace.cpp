#include "sluice/base/trace.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/file/paths.hpp"
#include "sluice/base/file/unshared.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/threads.hpp"
#include "sluice/base/written.hpp"

namespace sluice {

namespace {

// A file with these first bytes is a trace of this program.
constexpr std::string_view kBegin =
    "[\n{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"sluice\"}"
    "}";
constexpr std::string_view kEnd = "\n]\n";
constexpr std::size_t kMaxLanes = 128;           // of a row: more than ever overlap
constexpr std::size_t kMaxNameBytes = 120;       // for each half of a name
constexpr std::size_t kWriteBytes = 64U << 10U;  // wakes the writer's thread
constexpr std::size_t kNoLane = static_cast<std::size_t>(-1);

// One event, built without allocating. 2 KiB hold the longest event, whose names are all escapes.
class Line {
 public:
  void text(std::string_view plain) {
    const std::size_t size = std::min(plain.size(), sizeof(bytes_) - size_);
    std::memcpy(bytes_ + size_, plain.data(), size);
    size_ += size;
  }
  // Appends `name` as the inside of a JSON string.
  void escaped(std::string_view name) {
    for (const char c : name.substr(0, kMaxNameBytes)) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        text("\\");
        text({&c, 1});
      } else {
        text(byte < 0x20 || byte > 0x7E ? std::string_view("?") : std::string_view(&c, 1));
      }
    }
  }
  void number(std::int64_t value) {
    char digits[24];
    const auto end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
    text({digits, static_cast<std::size_t>(end - digits)});
  }
  // Appends microseconds, the unit of the format, with three decimals.
  void microseconds(std::int64_t nanoseconds) {
    number(nanoseconds / 1000);
    const std::int64_t rest = nanoseconds % 1000;
    const char digits[] = {'.', static_cast<char>('0' + rest / 100),
                           static_cast<char>('0' + rest / 10 % 10),
                           static_cast<char>('0' + rest % 10)};
    text({digits, sizeof(digits)});
  }
  std::string_view view() const { return {bytes_, size_}; }

 private:
  char bytes_[2048];
  std::size_t size_ = 0;
};

std::int64_t lane_id(std::size_t row, std::size_t lane) {
  return static_cast<std::int64_t>(row * kMaxLanes + lane + 1);
}

// Events that name a lane and set its position.
void announce_lane(Line& line, std::string_view row_name, std::int64_t id, std::size_t lane) {
  line.text(",\n{\"ph\":\"M\",\"pid\":1,\"tid\":");
  line.number(id);
  line.text(",\"name\":\"thread_name\",\"args\":{\"name\":\"");
  line.escaped(row_name);
  if (lane > 0) {
    line.text(" (");
    line.number(static_cast<std::int64_t>(lane) + 1);
    line.text(")");
  }
  line.text("\"}},\n{\"ph\":\"M\",\"pid\":1,\"tid\":");
  line.number(id);
  line.text(",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":");
  line.number(id);
  line.text("}}");
}

// The rest of a span's event: its row, name and numbers.
void describe(Line& line, std::string_view row_name, std::string_view what,
              std::string_view subject, TraceArgs args) {
  line.text(",\"cat\":\"");
  line.escaped(row_name);
  line.text("\",\"name\":\"");
  line.escaped(what);
  if (!subject.empty()) line.text(" ");
  line.escaped(subject);
  line.text("\",\"args\":{");
  bool first = true;
  for (const TraceArg& arg : args) {
    if (arg.key == nullptr) continue;
    line.text(std::exchange(first, false) ? "\"" : ",\"");
    line.escaped(arg.key);
    line.text("\":");
    line.number(arg.value);
  }
  line.text("}}");
}

// Writes all of `bytes`; returns 0 or the errno.
int write_at(int fd, std::string_view bytes, std::uint64_t offset_bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset_bytes));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written == 0 ? EIO : errno;
    bytes.remove_prefix(static_cast<std::size_t>(written));
    offset_bytes += static_cast<std::uint64_t>(written);
  }
  return 0;
}

}  // namespace

bool is_trace_file(const std::string& path) {
  const UniqueFd fd(SLUICE_SYSCALL(::open(path.c_str(), O_RDONLY | O_CLOEXEC), path));
  char found[kBegin.size()];
  const auto size = SLUICE_SYSCALL(::pread(fd.get(), found, sizeof(found), 0), path);
  return size == 0 || std::string_view(found, static_cast<std::size_t>(size)) == kBegin;
}

void check_trace_path(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return;  // opening creates the file, or says why not
  SLUICE_CHECK(S_ISREG(status.st_mode) || S_ISCHR(status.st_mode),
               path + ": a trace is written to a regular file, and this is none");
  SLUICE_CHECK(!S_ISREG(status.st_mode) || is_trace_file(path),
               path +
                   ": this file is no trace, and would be replaced; remove it, or choose "
                   "another name");
}

Trace::Trace(const std::string& path, Old old, std::size_t buffer_bytes)
    : path_(path), buffer_bytes_(std::max(buffer_bytes, kWriteBytes)) {
  open(old);
  const std::string first = std::string(kBegin) + std::string(kEnd);
  if (const int error_number = write_at(fd_.get(), first, 0); error_number == 0) {
    end_bytes_ = kBegin.size();
  } else {
    end_here(error_number);
  }
  filling_.reserve(buffer_bytes_ + kEnd.size());
  writer_ = start_thread("sluice-trace", [this] { run(); });
}

Trace::~Trace() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_one();
  }
  writer_.join();
  if (!ended_) {
    try {
      check_written(fd_.get(), path_);
    } catch (const IoError& error) {
      log(LogLevel::warn, "the trace may lack what was written last: " + std::string(error.what()));
    }
  }
  MutexLock lock(mutex_);
  if (dropped_ > 0) {
    log(LogLevel::warn, "the trace " + path_ + " lacks " + std::to_string(dropped_) +
                            " spans: they came faster than the file takes them");
  }
}

void Trace::open_and_lock() {
  check_trace_path(path_);
  fd_ = open_unshared(path_, O_RDWR | O_CREAT, 0644);
  if (!fd_) throw IoError(errno, "open", path_);
  if (!try_flock(fd_.get(), LOCK_EX, path_))
    throw StorageError(path_, "is being written by another run: give each its own trace");
}

void Trace::open(Old old) {
  open_and_lock();
  struct stat status {};
  SLUICE_SYSCALL(::fstat(fd_.get(), &status), path_);
  if (!S_ISREG(status.st_mode)) return;
  if (old == Old::keep && status.st_size > 0) {
    const std::string aside = free_numbered_path(path_);
    SLUICE_SYSCALL(::rename(path_.c_str(), aside.c_str()), path_);
    log(LogLevel::info, path_ + " is the trace of an earlier run and is now " + aside);
    open_and_lock();
  }
  SLUICE_SYSCALL(::ftruncate(fd_.get(), 0), path_);
}

std::size_t Trace::row(std::string_view name) {
  MutexLock lock(mutex_);
  const auto found =
      std::find_if(rows_.begin(), rows_.end(), [&](const Row& row) { return row.name == name; });
  if (found != rows_.end()) return static_cast<std::size_t>(found - rows_.begin());
  rows_.push_back({std::string(name), {}});
  rows_.back().lane_ends.reserve(kMaxLanes);
  return rows_.size() - 1;
}

// Spans arrive roughly in the order of their ends. A span fits into a lane whose last span has
// ended before the new one begins. Takes the lane that has been idle for the shortest time.
std::size_t Trace::lane_of(std::size_t row, std::int64_t begin) {
  std::vector<std::int64_t>& ends = rows_[row].lane_ends;
  std::size_t best = kNoLane;
  for (std::size_t lane = 0; lane < ends.size(); ++lane) {
    if (ends[lane] <= begin && (best == kNoLane || ends[lane] > ends[best])) best = lane;
  }
  if (best != kNoLane || ends.size() == kMaxLanes) return best;
  Line line;
  announce_lane(line, rows_[row].name, lane_id(row, ends.size()), ends.size());
  if (!append(line.view())) return kNoLane;
  ends.push_back(0);
  return ends.size() - 1;
}

bool Trace::append(std::string_view event) {
  if (filling_.size() + event.size() > buffer_bytes_) return false;
  filling_.append(event);
  return true;
}

void Trace::add(std::size_t row, std::string_view what, std::string_view subject,
                TraceClock::time_point begin, TraceClock::time_point end, TraceArgs args) {
  if (!recording_ || ended_) return;
  const auto since_begin = [&](TraceClock::time_point time) {
    const std::chrono::nanoseconds elapsed = time - begin_;
    return std::max<std::int64_t>(0, elapsed.count());
  };
  const std::int64_t from = since_begin(begin);
  const std::int64_t to = std::max(from, since_begin(end));
  MutexLock lock(mutex_);
  SLUICE_CHECK(row < rows_.size(),
               path_ + ": the trace has no row " + std::to_string(row) + "; make rows with row()");
  const std::size_t lane = lane_of(row, from);
  if (lane == kNoLane) {
    ++dropped_;
    return;
  }
  Line line;
  line.text(",\n{\"ph\":\"X\",\"pid\":1,\"tid\":");
  line.number(lane_id(row, lane));
  line.text(",\"ts\":");
  line.microseconds(from);
  line.text(",\"dur\":");
  line.microseconds(to - from);
  describe(line, rows_[row].name, what, subject, args);
  if (append(line.view())) {
    rows_[row].lane_ends[lane] = to;
  } else {
    ++dropped_;
  }
  if (filling_.size() < kWriteBytes || wanted_) return;
  wanted_ = true;
  changed_.notify_one();
}

void Trace::flush() {
  MutexLock lock(mutex_);
  wanted_ = true;
  changed_.notify_one();
}

void Trace::run() {
  std::string writing;
  writing.reserve(buffer_bytes_ + kEnd.size());
  for (;;) {
    {
      MutexLock lock(mutex_);
      while (!wanted_ && !stopping_) changed_.wait(mutex_);
      wanted_ = false;
      if (filling_.empty() && stopping_) return;
      writing.swap(filling_);
    }
    if (!writing.empty()) write(writing);
    writing.clear();
  }
}

// Overwrites the bracket that closes the array, and writes another one behind the events.
void Trace::write(std::string& events) {
  if (ended_) return;
  events.append(kEnd);
  const int error_number = write_at(fd_.get(), events, end_bytes_);
  if (error_number != 0) return end_here(error_number);
  end_bytes_ += events.size() - kEnd.size();
}

// The file already had a closing bracket, so writing it back needs no new block.
void Trace::end_here(int error_number) {
  ended_ = true;
  const bool empty = end_bytes_ == 0;
  const bool cut = ::ftruncate(fd_.get(), static_cast<off_t>(end_bytes_)) == 0 &&
                   (empty || write_at(fd_.get(), kEnd, end_bytes_) == 0);
  log(LogLevel::warn, std::string(empty ? "there is no trace" : "the trace ends here") +
                          ", the run goes on: " + path_ + ": " + std::strerror(error_number) +
                          (cut || empty ? "" : "; its end is damaged"));
}

}  // namespace sluice
