// A long run holds at its end what it held at its beginning.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "train_support.hpp"

namespace sluice::test {
namespace {

struct Sample {
  double step = 0;
  double resident_kib = 0;  // RssAnon + RssShmem
  double descriptors = 0;
  double disk_kib = 0;  // of the swap directory; checkpoints are counted at the end
};

double field_kib(const std::string& status, const std::string& name) {
  const auto at = status.find(name + ":");
  return at == std::string::npos ? 0 : std::strtod(status.c_str() + at + name.size() + 1, nullptr);
}

// Without the manifest, which at times is there twice while it is being replaced, and grows by a
// digit.
double disk_kib(const std::string& directory) {
  double sum = 0;
  std::error_code gone;
  for (std::filesystem::recursive_directory_iterator it(directory, gone), end; it != end;
       it.increment(gone)) {
    if (it->path().filename().string().rfind("manifest.json", 0) == 0) continue;
    const auto size = it->is_regular_file(gone) ? it->file_size(gone) : 0;
    if (!gone) sum += static_cast<double>(size) / 1024;
    if (gone) break;
  }
  return sum;
}

Sample sample(pid_t process, const TrainFolder& folder, int step) {
  const std::string proc = "/proc/" + std::to_string(process);
  const std::string status = file_text(proc + "/status");
  std::error_code gone;
  const std::filesystem::directory_iterator descriptors(proc + "/fd", gone);
  return {static_cast<double>(step), field_kib(status, "RssAnon") + field_kib(status, "RssShmem"),
          static_cast<double>(std::distance(begin(descriptors), end(descriptors))),
          disk_kib(folder.swap())};
}

// Least squares, per step.
double slope(const std::vector<Sample>& samples, double Sample::*value) {
  const auto count = static_cast<double>(samples.size());
  double x = 0, y = 0, xx = 0, xy = 0;
  for (const Sample& each : samples) {
    x += each.step;
    y += each.*value;
    xx += each.step * each.step;
    xy += each.step * each.*value;
  }
  return (count * xy - x * y) / (count * xx - x * x);
}

TEST(Endurance, AThousandStepsWithCheckpointsHoldNoMoreThanTen) {
  constexpr int kSteps = 1000;
  TrainFolder folder;
  write_file(folder.model(), R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4,
                                 "n_positions": 16, "vocab_size": 256})");
  TrainSetup setup;
  setup.micro_batch = 1;
  setup.accumulation = 1;
  setup.sluice_keys =
      "\"checkpoint_dir\": \"" + folder.checkpoints() + "\", \"checkpoint_every\": 100, ";
  folder.set(setup);
  Process program = start_sluice(folder.arguments("report", kSteps));
  std::vector<Sample> samples;
  while (program.runs()) {
    const int step = line_count(folder.path("report") + "/steps.jsonl");
    if (step >= 10 && step < kSteps && (samples.empty() || step >= samples.back().step + 5))
      samples.push_back(sample(program.id(), folder, step));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // polls another process
  }
  ASSERT_EQ(program.wait(), 0);
  ASSERT_GE(samples.size(), 30U) << "too fast to be watched";
  // Over the whole run less than half a MiB, less than half a descriptor, less than a page.
  EXPECT_LT(slope(samples, &Sample::resident_kib) * kSteps, 512);
  EXPECT_LT(slope(samples, &Sample::descriptors) * kSteps, 0.5);
  EXPECT_LT(slope(samples, &Sample::disk_kib) * kSteps, 4);
  // Two checkpoints are kept, whatever was written.
  EXPECT_EQ(std::count_if(std::filesystem::directory_iterator(folder.checkpoints()), {},
                          [](const auto& entry) { return entry.is_directory(); }),
            2);
}

}  // namespace
}  // namespace sluice::test
