#include "record/line_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "saved/synced_path.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/file/paths.hpp"
#include "sluice/base/file/unshared.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/written.hpp"

namespace sluice::train {

namespace {

// Calls `take` with each whole line, without its newline. Returns whether a torn line follows the
// last one. Throws IoError.
bool for_each_line(int fd, const std::string& path,
                   const std::function<void(const std::string& line)>& take) {
  std::uint64_t read = 0;
  std::string line;
  std::array<char, 65536> buffer;
  for (;;) {
    const auto got = static_cast<std::size_t>(
        SLUICE_SYSCALL(::pread(fd, buffer.data(), buffer.size(), static_cast<off_t>(read)), path));
    if (got == 0) return !line.empty();
    read += got;
    std::string_view rest(buffer.data(), got);
    for (auto end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      line += rest.substr(0, end);
      rest.remove_prefix(end + 1);
      take(line);
      line.clear();
    }
    line += rest;
  }
}

// No line has them, but for a carriage return at its end: loss of power may leave zeros.
bool has_control_bytes(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  return std::ranges::any_of(line,
                             [](char byte) { return static_cast<unsigned char>(byte) < 0x20; });
}

// Says line by line which stay.
class Sieve {
 public:
  Sieve(std::int64_t last_kept, const LineFormat& format)
      : last_kept_(last_kept), format_(format) {}
  enum class Line { kept, later, damaged };
  Line take(const std::string& line) {
    const std::optional<std::int64_t> number =
        has_control_bytes(line) ? std::nullopt : format_.number_of(line);
    if (!number || (*number != 0 && *number <= last_)) return Line::damaged;
    if (*number > last_kept_) return Line::later;
    last_ = std::max(last_, *number);
    return Line::kept;
  }
  std::int64_t last() const { return last_; }  // the number of the last line that stays; 0: none

 private:
  std::int64_t last_kept_;
  const LineFormat& format_;
  std::int64_t last_ = 0;
};

// A file as a resumed run finds it.
struct Lines {
  std::uint64_t kept_bytes = 0;  // of the lines that stay; they begin the file if none is damaged
  std::int64_t last = 0;         // the number of the last one
  std::int64_t damaged = 0;      // the first damaged line, from 1; 0: none that matters
  std::vector<std::pair<std::int64_t, std::int64_t>> missing;  // from, to; with has_every_number
};

Lines scan(int fd, const std::string& path, std::int64_t last_kept, const LineFormat& format) {
  Lines found;
  Sieve sieve(last_kept, format);
  std::int64_t count = 0;
  std::int64_t first_cut = 0;  // the first line that does not stay
  std::int64_t damaged = 0;
  const auto miss = [&](std::int64_t from, std::int64_t to) {
    if (format.has_every_number && from <= to) found.missing.emplace_back(from, to);
  };
  const bool torn = for_each_line(fd, path, [&](const std::string& line) {
    ++count;
    const std::int64_t before = sieve.last();
    const Sieve::Line what = sieve.take(line);
    if (what != Sieve::Line::kept) {
      if (first_cut == 0) first_cut = count;
      if (what == Sieve::Line::damaged && damaged == 0) damaged = count;
      return;
    }
    found.kept_bytes += line.size() + 1;
    if (first_cut != 0) found.damaged = first_cut;  // whatever its number is
    if (before > 0 || first_cut != 0) miss(before + 1, sieve.last() - 1);
  });
  found.last = sieve.last();
  if (torn && first_cut == 0 && format.has_every_number) damaged = count + 1;
  // Behind the last line that counts, a run that was killed may leave anything.
  if (found.damaged == 0 && found.last < last_kept) found.damaged = damaged;
  miss(found.last + 1, last_kept);
  return found;
}

// For a warning.
std::string missing_text(const Lines& lines) {
  constexpr std::size_t kMost = 5;
  if (lines.missing.empty()) return "";
  std::string text;
  for (std::size_t i = 0; i < std::min(kMost, lines.missing.size()); ++i) {
    const auto [from, to] = lines.missing[i];
    text += (i == 0 ? "" : ", ") + std::to_string(from);
    if (to > from) text += " to " + std::to_string(to);
  }
  if (lines.missing.size() > kMost) text += " and others";
  return "the lines of these committed steps are missing: " + text;
}

UniqueFd open_and_lock(const std::string& path, const std::string& setting) {
  // Read as well: a FIFO of this name, opened for writing only, would be waited for.
  UniqueFd fd = open_unshared(path, O_RDWR | O_CREAT | O_APPEND, 0644);
  if (!fd) throw IoError(errno, "open", path);
  struct stat info {};
  SLUICE_SYSCALL(::fstat(fd.get(), &info), path);
  if (!S_ISREG(info.st_mode))
    throw StorageError(path, "is not a regular file: remove it, or choose another " + setting);
  if (!try_flock(fd.get(), LOCK_EX, path))
    throw StorageError(path, "is being written by another run: give each its own " + setting);
  return fd;
}

// The path that the file has then.
std::string put_aside(const std::string& path) {
  std::string aside = free_numbered_path(path);
  SLUICE_SYSCALL(::rename(path.c_str(), aside.c_str()), path);
  return aside;
}

// A copy of the lines that stay has this name when it is whole, until it takes the file's.
std::string draft_path(const std::string& path) {
  return path + ".tmp";
}
// Its name before.
std::string part_path(const std::string& path) {
  return draft_path(path) + ".part";
}

// Copies the lines that stay, behind a header. Returns how many bytes they are.
std::uint64_t copy_kept(int from, int to, const std::string& path, std::int64_t last_kept,
                        const LineFormat& format) {
  constexpr std::size_t kMostBytes = 1 << 16;
  Sieve sieve(last_kept, format);
  std::string text;
  std::uint64_t bytes = 0;
  for_each_line(from, path, [&](const std::string& line) {
    if (sieve.take(line) != Sieve::Line::kept) return;
    if (bytes + text.size() == 0 && sieve.last() > 0) text = format.header;  // its own was damaged
    text += line + "\n";
    if (text.size() < kMostBytes) return;
    bytes += text.size();
    write_all(to, std::exchange(text, {}), path);
  });
  write_all(to, text, path);
  return bytes + text.size();
}

struct Copy {
  UniqueFd fd;
  std::uint64_t bytes = 0;
};

// Copies the lines that stay to the draft, which has the file's mode and is on its drive then.
// Throws IoError; then nothing is left.
Copy copy_to_draft(int from, const std::string& path, std::int64_t last_kept,
                   const LineFormat& format) {
  const std::string part = part_path(path);
  Copy copy{open_and_lock(part, format.setting)};
  try {
    SLUICE_SYSCALL(::ftruncate(copy.fd.get(), 0), part);
    struct stat info {};
    SLUICE_SYSCALL(::fstat(from, &info), path);
    SLUICE_SYSCALL(::fchmod(copy.fd.get(), info.st_mode & ALLPERMS), part);
    copy.bytes = copy_kept(from, copy.fd.get(), part, last_kept, format);
    SLUICE_SYSCALL(::fdatasync(copy.fd.get()), part);
    check_written(copy.fd.get(), part);
    SLUICE_SYSCALL(::rename(part.c_str(), draft_path(path).c_str()), part);
  } catch (...) {
    remove_file_quietly(part);
    throw;
  }
  return copy;
}

// Gives the file the name `aside`, and `path` to the draft. The name is never without a file,
// except where the file system has no links. Throws IoError; then the file has its name alone.
void exchange_for_draft(const std::string& path, const std::string& aside) {
  const std::string draft = draft_path(path);
  const bool has_links = ::link(path.c_str(), aside.c_str()) == 0;
  if (!has_links) SLUICE_SYSCALL(::rename(path.c_str(), aside.c_str()), path);
  if (::rename(draft.c_str(), path.c_str()) == 0) return;
  const int error_number = errno;
  if (has_links) remove_file_quietly(aside);
  // The next run takes the draft where this fails.
  const bool is_back = has_links || ::rename(aside.c_str(), path.c_str()) == 0;
  if (is_back) remove_file_quietly(draft);
  throw IoError(error_number, "rename", draft);
}

// Gives the damaged file `damaged` another name, and `path` to a new one of its whole lines, which
// is returned. After an error or a kill at any place, both have all their lines.
AppendFile put_damaged_aside(int damaged, const Lines& lines, const std::string& path,
                             std::int64_t last_kept, const LineFormat& format,
                             const AppendFile::Open& open) {
  const std::string line = path + ": line " + std::to_string(lines.damaged) + " is damaged";
  const std::string aside = free_numbered_path(path);
  Copy copy;
  try {
    copy = copy_to_draft(damaged, path, last_kept, format);
    exchange_for_draft(path, aside);
  } catch (const IoError&) {
    log(LogLevel::warn,
        line + ", and the file stays as it is: its whole lines cannot be put into a new one");
    throw;
  }
  log(LogLevel::warn, line + ": the file is now " + aside + ", and its whole lines are in " + path +
                          (lines.missing.empty() ? "" : "; " + missing_text(lines)));
  return AppendFile(std::move(copy.fd), path, copy.bytes, open, format.header);
}

// For a file of two names, as a kill in put_damaged_aside() leaves it: the other name keeps all
// lines.
AppendFile go_on_in_a_copy(int from, const std::string& path, std::int64_t last_kept,
                           const LineFormat& format, const AppendFile::Open& open) {
  Copy copy = copy_to_draft(from, path, last_kept, format);
  SLUICE_SYSCALL(::rename(draft_path(path).c_str(), path.c_str()), path);
  log(LogLevel::info,
      path + " had another name too, which keeps its lines: the run goes on in a copy of " + path);
  return AppendFile(std::move(copy.fd), path, copy.bytes, open, format.header);
}

// After a kill between two renames the draft is all that is left, and takes the file's name.
// Returns whether there is a file now.
bool has_file(const std::string& path) {
  if (::access(path.c_str(), F_OK) == 0) return true;
  const std::string draft = draft_path(path);
  if (::rename(draft.c_str(), path.c_str()) != 0) return false;
  log(LogLevel::warn,
      path + " was not there, and " + draft +
          " has its name now: the whole lines of a damaged file, as a killed run left them");
  return true;
}

AppendFile open_kept(const std::string& path, std::int64_t last_kept, const LineFormat& format,
                     bool is_of_this_run) {
  const auto open = [path, setting = format.setting] { return open_and_lock(path, setting); };
  const bool was_there = has_file(path);
  UniqueFd fd = open();
  for (const std::string& left : {draft_path(path), part_path(path)})  // by a kill
    remove_file_quietly(left);
  Lines lines = scan(fd.get(), path, last_kept, format);
  struct stat info {};
  SLUICE_SYSCALL(::fstat(fd.get(), &info), path);
  if (lines.damaged > 0 && last_kept > 0)
    return put_damaged_aside(fd.get(), lines, path, last_kept, format, open);
  if (lines.last == 0 && info.st_size > 0 && !is_of_this_run) {
    // The file belongs to an earlier run; this run starts a new one.
    lines.kept_bytes = 0;
    log(LogLevel::info, path + " is of an earlier run and is now " + put_aside(path));
    fd = open();
  } else {
    if (was_there && !lines.missing.empty() && lines.missing.back().second == last_kept) {
      // The others were told of when they arose.
      lines.missing.erase(lines.missing.begin(), lines.missing.end() - 1);
      log(LogLevel::warn, path + ": " + missing_text(lines));
    }
    if (info.st_nlink > 1) return go_on_in_a_copy(fd.get(), path, last_kept, format, open);
  }
  SLUICE_SYSCALL(::ftruncate(fd.get(), static_cast<off_t>(lines.kept_bytes)), path);
  return AppendFile(std::move(fd), path, lines.kept_bytes, open, format.header);
}

}  // namespace

void make_directory(const std::string& directory) {
  std::error_code error;
  if (std::filesystem::exists(directory, error) && !std::filesystem::is_directory(directory, error))
    throw InvalidArgument(directory +
                          " is a file, and a directory is expected: choose another name");
  make_directories(directory, error, sync_names_of_report);
  if (error) throw IoError(error.value(), "create directory", directory);
}

void check_can_write_lines(const std::string& directory) {
  make_directory(directory);
  SLUICE_SYSCALL(::access(directory.c_str(), W_OK | X_OK), directory);
}

LineFile::LineFile(const std::string& path, std::int64_t last_kept, const LineFormat& format,
                   bool is_of_this_run)
    : file_(open_kept(path, last_kept, format, is_of_this_run)) {}

}  // namespace sluice::train
