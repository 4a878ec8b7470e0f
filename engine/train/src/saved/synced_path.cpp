#include "saved/synced_path.hpp"

#include <cerrno>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"

namespace sluice::train {

namespace fs = std::filesystem;

void sync_names_of_report(const std::string& directory) {
  try {
    sync_path(directory);
  } catch (const IoError& error) {
    if (error.code().value() != EACCES) throw;
    log(LogLevel::warn, directory +
                            ": may not be listed, so a loss of power may take what the run made "
                            "in it; allow reading it, or choose another directory");
  }
}

void make_directories(const fs::path& directory, std::error_code& error,
                      void (*sync)(const std::string&)) {
  std::vector<fs::path> made;
  std::error_code ignored;
  for (fs::path path = fs::absolute(directory, error); !error && !fs::exists(path, ignored);
       path = path.parent_path())
    made.push_back(path);
  fs::create_directories(directory, error);
  if (error) return;
  for (const fs::path& path : made) sync(path.parent_path());
}

}  // namespace sluice::train
