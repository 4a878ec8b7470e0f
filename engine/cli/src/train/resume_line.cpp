#include "train/resume_line.hpp"

#include <algorithm>
#include <cstdlib>

#include "files/input_file.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

std::string line_of(std::vector<std::string> argv, const train::RankPlace& place) {
  const bool resumes = std::find(argv.begin(), argv.end(), "--resume") != argv.end();
  const char* const launch = place.size > 1 ? std::getenv(kLaunchLineVariable) : nullptr;
  if (launch != nullptr) return "  " + std::string(launch) + (resumes ? "" : " --resume");
  if (!resumes) argv.emplace_back("--resume");
  std::string line = "  " + shell_line(argv);
  if (place.size == 1) return line;
  return "  start the " + std::to_string(place.size) +
         " ranks as before, each with this line (mpirun -n " + std::to_string(place.size) + "):\n" +
         line;
}

}  // namespace

std::string resume_lines(std::vector<std::string> argv, const train::TrainRequest& request) {
  std::string text = line_of(std::move(argv), request.place);
  std::vector<std::string> inputs = request.tuned_paths;
  inputs.push_back(request.config_path);
  inputs.push_back(request.model_path);
  inputs.insert(inputs.end(), request.data_paths.begin(), request.data_paths.end());
  for (const std::string& path : inputs) {
    if (is_pipe(path)) text += "\n  (" + path + " was a pipe: give what it held again)";
  }
  return text;
}

}  // namespace sluice::cli
