// `sluice nvme bench` as its users run it.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "cli/json_text.hpp"
#include "cli/run_program.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;

class NvmeBench : public ::testing::Test {
 protected:
  ProgramResult bench(std::vector<std::string> more) const {
    std::vector<std::string> arguments = {"nvme", "bench"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_sluice(arguments);
  }
  Json::Value measure(std::vector<std::string> more) const {
    more.insert(more.end(), {"--size", "8MiB", "--seconds", "0.05", "--depth", "4", "--json"});
    const ProgramResult result = bench(std::move(more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return parse_json(result.out);
  }
  void expect_refused(int exit_code, const std::string& part, std::vector<std::string> more) const {
    const ProgramResult result = bench(std::move(more));
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(part));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }

  TempDir dir_;
};

TEST_F(NvmeBench, ReportsEveryPatternOnEveryBackend) {
  for (const char* op : {"read", "write", "mixed", "swap"}) {
    for (const char* backend : {"auto", "threads"}) {
      const Json::Value result = measure({dir_.path(), "--op", op, "--backend", backend});
      const std::string what = std::string(op) + " " + backend;
      EXPECT_EQ(result["op"].asString(), op);
      EXPECT_EQ(result["size_bytes"].asUInt64(), 8U << 20U);
      EXPECT_GT(result["GBps"].asDouble(), 0) << what;
      EXPECT_GT(result["iops"].asDouble(), 0) << what;
      EXPECT_GT(result["p50_us"].asDouble(), 0) << what;
      EXPECT_LE(result["p50_us"].asDouble(), result["p99_us"].asDouble()) << what;
      EXPECT_LE(result["p99_us"].asDouble(), result["p999_us"].asDouble()) << what;
      EXPECT_GT(result["cpu_s_per_GiB"].asDouble(), 0) << what;
      EXPECT_EQ(result["bounce_bytes"].asUInt64(), 0U) << what;
    }
  }
  EXPECT_TRUE(std::filesystem::exists(dir_.file("bench.sluice"))) << "kept for the next time";
  measure({dir_.path(), "--clean"});
  EXPECT_FALSE(std::filesystem::exists(dir_.file("bench.sluice")));
}

TEST_F(NvmeBench, RefusesWhatCannotBeBeforeItMakesAFile) {
  for (const std::vector<std::string>& bad : std::vector<std::vector<std::string>>{
           {"--op", "swap", "--access", "random"},
           {"--tensors", "5"},
           {"--reads-per-write", "5"},
           {"--op", "swap", "--tensors", "100000", "--size", "64MiB"},
           {"--op", "swap", "--size", "4096", "--block", "4096"}}) {
    std::vector<std::string> line = {dir_.path()};
    line.insert(line.end(), bad.begin(), bad.end());
    EXPECT_EQ(bench(line).exit_code, 2) << bad.back();
  }
  expect_refused(3, "--depth 4096 of --block 1.00 GiB",
                 {dir_.path(), "--block", "1GiB", "--depth", "4096"});
  expect_refused(2, "is given twice", {dir_.path(), dir_.path() + "/."});
  EXPECT_FALSE(std::filesystem::exists(dir_.file("bench.sluice")));
}

TEST_F(NvmeBench, WithAGpusMemoryRefusesWhatHasNoMeaningThere) {
  for (const std::vector<std::string>& bad : std::vector<std::vector<std::string>>{
           {"--op", "swap"}, {"--access", "random"}, {"--fio"}, {"--clean"}, {"--tensors", "5"}}) {
    std::vector<std::string> line = {dir_.path(), "--memory", "cuda"};
    line.insert(line.end(), bad.begin(), bad.end());
    expect_refused(2, "has no meaning with --memory cuda", line);
  }
  expect_refused(2, "expected one directory", {dir_.path() + "/none", "--memory", "cuda"});
  expect_refused(2, "expected host, cuda or cuda:1", {dir_.path(), "--memory", "gpu"});
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

TEST_F(NvmeBench, RefusesToWriteOverTheFilesOfARun) {
  std::ofstream(dir_.file("states.0.swap")) << std::string(8192, 'x');
  const std::vector<std::string> line = {dir_.file("states.0.swap"),
                                         "--overwrite",
                                         "--op",
                                         "write",
                                         "--block",
                                         "4096",
                                         "--seconds",
                                         "0.05"};
  EXPECT_EQ(bench(line).exit_code, 0) << "a name alone says nothing";
  std::ofstream(dir_.file("states.0.swap")) << std::string(8192, 'x');
  std::ofstream(dir_.file("lock")) << "1\n";
  expect_refused(2, "is part of a training run", line);
  const TempDir other;
  std::vector<std::string> by_link = line;
  by_link[0] = other.file("soft");
  std::filesystem::create_symlink(std::filesystem::absolute(dir_.file("states.0.swap")),
                                  by_link[0]);
  expect_refused(2, "is part of a training run", by_link);
  by_link[0] = other.file("hard");
  std::filesystem::create_hard_link(dir_.file("states.0.swap"), by_link[0]);
  expect_refused(2, "has another name", by_link);
  EXPECT_EQ(run_program({"/bin/sh", "-c", "tr -d x < " + dir_.file("states.0.swap")}).out, "");
}

TEST_F(NvmeBench, RefusesAPageInPlaceOfWhatIsMeasuredOrOfARun) {
  std::ofstream(dir_.file("data")) << std::string(8192, 'x');
  std::ofstream(dir_.file("manifest.json")) << "{}";
  const std::vector<std::string> seconds = {"--block", "4096", "--seconds", "0.05", "--html"};
  const auto refuse = [&](const std::string& part, const std::string& path,
                          const std::string& page) {
    std::vector<std::string> line = {path};
    line.insert(line.end(), seconds.begin(), seconds.end());
    line.push_back(page);
    expect_refused(2, part, line);
  };
  refuse("is the file that is measured", dir_.file("data"), dir_.path() + "/./data");
  refuse("is the file that is measured", dir_.path(), dir_.file("bench.sluice"));
  refuse("is part of a training run", dir_.file("data"), dir_.file("manifest.json"));
  EXPECT_EQ(std::filesystem::file_size(dir_.file("data")), 8192U);
  EXPECT_EQ(std::filesystem::file_size(dir_.file("manifest.json")), 2U);
}

TEST_F(NvmeBench, WritesAPageThroughALink) {
  const std::string link = dir_.file("page.html"), page = dir_.file("elsewhere.html");
  const std::string swap = dir_.file("swap");
  std::filesystem::create_directory(swap);
  std::filesystem::create_symlink("elsewhere.html", link);
  expect_refused(4, "free", {swap, "--html", link, "--size", "8TiB"});
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_FALSE(std::filesystem::exists(page)) << "what is only tried is not left";
  measure({swap, "--html", link, "--clean"});
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_THAT(file_text(page), HasSubstr("<svg"));
  std::filesystem::remove(link);
  std::filesystem::create_symlink(swap + "/bench.sluice", link);
  expect_refused(2, "is the file that is measured", {swap, "--html", link});
}

TEST_F(NvmeBench, RefusesADriveThatAnotherBenchMeasures) {
  measure({dir_.path()});
  const int fd = ::open(dir_.file("bench.sluice").c_str(), O_RDWR);
  ASSERT_EQ(::flock(fd, LOCK_EX | LOCK_NB), 0);
  expect_refused(4, "another program measures this drive", {dir_.path(), "--size", "8MiB"});
  ::close(fd);
  measure({dir_.path()});
}

TEST_F(NvmeBench, SwapsAListOfTensors) {
  const Json::Value result = measure({dir_.path(), "--op", "swap", "--tensors", "100"});
  EXPECT_GT(result["GBps"].asDouble(), 0);
  EXPECT_EQ(result["bounce_bytes"].asUInt64(), 0U);
  EXPECT_GT(result["read_bytes"].asUInt64(), 0U);
}

TEST_F(NvmeBench, LooksForFioBeforeItFillsAFile) {
  const ProgramResult result = run_program(
      {sluice_program(), "nvme", "bench", dir_.path(), "--fio"}, {{"PATH", "/nowhere"}});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--fio: fio is not installed (package fio)"));
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

TEST_F(NvmeBench, ComparesWithFioAndFioWithItself) {
  if (run_program({"/bin/sh", "-c", "command -v fio"}).exit_code != 0)
    GTEST_SKIP() << "fio is not installed";
  const auto bench_for = [&](const char* seconds) {
    return bench({dir_.path(), "--size", "8MiB", "--fio", "--slice", "0.1", "--seconds", seconds,
                  "--depth", "4", "--json", "--html", dir_.file("fio.html")});
  };
  const ProgramResult result = bench_for("0.3");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json::Value fio = parse_json(result.out)["fio"];
  EXPECT_THAT(fio["command"].asString(), HasSubstr("fio --name=peer --filename="));
  EXPECT_THAT(result.err, HasSubstr("3 rounds of slices of 0.1 s; an interval needs 6"));
  for (const char* what : {"ratio", "control"}) {
    EXPECT_EQ(fio[what]["all"].size(), 3U) << what;
    EXPECT_GT(fio[what]["median"].asDouble(), 0) << what;
    EXPECT_FALSE(fio[what].isMember("interval90")) << what;
  }
  const std::string page = file_text(dir_.file("fio.html"));
  EXPECT_THAT(page, HasSubstr("</b>&nbsp;fio on "));  // in the legend
  EXPECT_THAT(page, HasSubstr("<pre>GLIBC_TUNABLES"));
  EXPECT_THAT(page, HasSubstr("fio / fio (control)"));
  const Json::Value ratio = parse_json(bench_for("0.6").out)["fio"]["ratio"];
  EXPECT_LE(ratio["interval90"][0].asDouble(), ratio["median"].asDouble());
}

// As the Ctrl-C of a terminal, which reaches fio too.
TEST_F(NvmeBench, ASignalToAllProcessesIsNoFailureOfFio) {
  if (run_program({"/bin/sh", "-c", "command -v fio"}).exit_code != 0)
    GTEST_SKIP() << "fio is not installed";
  for (const char* after : {"0.5", "1.2"}) {
    const ProgramResult result = run_program(
        {"/usr/bin/timeout", "--preserve-status", "-s", "TERM", after, sluice_program(), "nvme",
         "bench", dir_.path(), "--size", "8MiB", "--fio", "--slice", "0.4", "--seconds", "30"});
    EXPECT_EQ(result.exit_code, 143) << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("fio failed"))) << after;
  }
}

TEST_F(NvmeBench, AnObjectOfFioThatIsNestedWithoutEndIsShown) {
  const std::string fio = dir_.file("fio");
  write_file(fio, "#!/bin/sh\n[ \"$1\" = --version ] && exit\necho '{\"jobs\":" +
                      std::string(5000, '[') + "'\n");
  std::filesystem::permissions(fio, std::filesystem::perms::owner_all);
  std::filesystem::create_directory(dir_.file("drive"));
  const ProgramResult result =
      run_program({sluice_program(), "nvme", "bench", dir_.file("drive"), "--size", "8MiB", "--fio",
                   "--slice", "0.1", "--seconds", "1"},
                  {{"PATH", dir_.path() + ":/usr/bin:/bin"}});
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_THAT(result.err, HasSubstr("fio failed: {\"jobs\":["));
}

// A fio that outlived the bench would go on to use the drive.
TEST_F(NvmeBench, FioDiesWithTheBenchThatIsKilled) {
  const std::string fio = dir_.file("fio");
  const std::string started = dir_.file("started");
  write_file(fio, "#!/bin/sh\n[ \"$1\" = --version ] && exit\necho $$ >" + started + ".new; mv " +
                      started + ".new " + started + "; exec sleep 60\n");
  std::filesystem::permissions(fio, std::filesystem::perms::owner_all);
  std::filesystem::create_directory(dir_.file("drive"));
  const std::string shell =
      "\"$0\" nvme bench \"$1\" --size 8MiB --fio --slice 0.1 --seconds 1 & bench=$!\n"
      "while [ ! -e \"$2\" ]; do kill -0 $bench || exit 3; sleep 0.05; done\n"
      "fio=$(cat \"$2\"); kill -KILL $bench; wait $bench\n"
      "for i in $(seq 100); do kill -0 $fio 2>/dev/null || exit 0; sleep 0.05; done\n"
      "kill -KILL $fio; exit 4";
  const ProgramResult result =
      run_program({"/bin/sh", "-c", shell, sluice_program(), dir_.file("drive"), started},
                  {{"PATH", dir_.path() + ":/usr/bin:/bin"}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST_F(NvmeBench, MeasuresSeveralPathsAtOnceAndWritesAPage) {
  std::filesystem::create_directories(dir_.file("a"));
  std::filesystem::create_directories(dir_.file("b"));
  const std::string page = dir_.file("page.html");
  const Json::Value result = measure({dir_.file("a"), dir_.file("b"), "--html", page});
  ASSERT_EQ(result["paths"].size(), 2U);
  EXPECT_EQ(result["paths"][1]["path"].asString(), dir_.file("b"));
  const std::string text = file_text(page);
  EXPECT_THAT(text, HasSubstr("<svg"));
  EXPECT_THAT(text, HasSubstr(dir_.file("b")));
  EXPECT_EQ(text.find("http"), std::string::npos) << "nothing is loaded from elsewhere";
}

TEST_F(NvmeBench, AnExistingFileIsWrittenToOnlyWhenThatIsAllowed) {
  const std::string file = dir_.file("data");
  const std::string before(1 << 20, 'x');
  write_file(file, before);
  expect_refused(2, "--overwrite", {file, "--op", "write"});
  expect_refused(2, "--overwrite", {file, "--op", "swap"});
  const ProgramResult read = bench({file, "--block", "64KiB", "--seconds", "0.05"});
  EXPECT_EQ(read.exit_code, 0) << read.err;
  EXPECT_EQ(file_text(file), before);
  const ProgramResult written =
      bench({file, "--op", "write", "--overwrite", "--block", "64KiB", "--seconds", "0.05"});
  EXPECT_EQ(written.exit_code, 0) << written.err;
  EXPECT_NE(file_text(file), before);
  EXPECT_EQ(file_text(file).size(), before.size());
}

TEST_F(NvmeBench, BadInputIsOneLineThatSaysWhat) {
  const std::string fifo = dir_.file("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  expect_refused(2, "neither a directory nor a regular file", {fifo});
  expect_refused(4, dir_.file("absent"), {dir_.file("absent")});
  expect_refused(2, "--depth", {dir_.path(), "--depth", "0"});
  expect_refused(2, "multiple of 4096", {dir_.path(), "--block", "1000"});
  expect_refused(2, "--size", {dir_.path(), "--size", "0"});
  expect_refused(2, "did you mean \"write\"?", {dir_.path(), "--op", "wrote"});
  expect_refused(2, "io_uring", {dir_.path(), "--backend", "iouring"});
  expect_refused(2, "--seconds", {dir_.path(), "--seconds", "-1"});
  expect_refused(2, "swap is sequential",
                 {dir_.path(), "--op", "swap", "--access", "random", "--size", "8MiB"});
  expect_refused(2, "needs --op swap", {dir_.path(), "--tensors", "9", "--size", "8MiB"});
  expect_refused(2, "change the number of tensors",
                 {dir_.path(), "--op", "swap", "--tensors", "9999", "--size", "8MiB"});
  expect_refused(2, "--slice", {dir_.path(), "--fio", "--slice", "0"});
  expect_refused(2, "--slice: needs --fio", {dir_.path(), "--slice", "2"});
  expect_refused(4, "free", {dir_.path(), "--size", "8TiB"});
  expect_refused(2, "PATH", {});
}

TEST_F(NvmeBench, ADirectoryThatCannotBeWrittenToIsNamed) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to give it up";
  std::filesystem::create_directory(dir_.file("closed"));
  std::filesystem::permissions(dir_.file("closed"), std::filesystem::perms::owner_all);
  std::filesystem::permissions(dir_.path(), std::filesystem::perms::all);
  // A copy that any user may run, because the build's folder may be readable by its owner only.
  const std::string program = dir_.file("sluice");
  std::filesystem::copy_file(SLUICE_PROGRAM, program);
  std::filesystem::permissions(program, std::filesystem::perms::all);
  const ProgramResult result =
      run_program({"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", program,
                   "nvme", "bench", dir_.file("closed"), "--size", "1MiB"});
  EXPECT_EQ(result.exit_code, 4) << result.err;
  EXPECT_THAT(result.err, HasSubstr(dir_.file("closed")));
  EXPECT_THAT(result.err, HasSubstr("permission"));
}

}  // namespace
}  // namespace sluice::test
