#include "sluice/base/file/proc.hpp"

#include <gtest/gtest.h>

#include "file_text.hpp"
#include "temp_dir.hpp"

namespace sluice {
namespace {

TEST(ProcField, IsTheValueOfAWholeKey) {
  const test::TempDir dir;
  const std::string path = dir.file("f");
  test::write_file(path,
                   "MemTotalExtra: 1 kB\nMemTotal:       16318480 kB\nMemAvailable: 0 kB\n"
                   "model name\t: A processor\nNone:\n");
  EXPECT_EQ(proc_field(path, "MemTotal"), "16318480 kB");
  EXPECT_EQ(proc_field(path, "model name"), "A processor");
  EXPECT_EQ(proc_field(path, "Mem"), "");
  EXPECT_EQ(proc_field(path, "None"), "");
  EXPECT_EQ(proc_field(dir.file("absent"), "MemTotal"), "");
  EXPECT_EQ(proc_bytes(path, {"MemTotal"}), 16318480ULL * 1024);
  EXPECT_EQ(proc_bytes(path, {"MemAvailable"}), 0U);
  EXPECT_EQ(proc_bytes(path, {"Mem"}), std::nullopt);
  EXPECT_EQ(proc_bytes(path, {"MemTotal", "MemTotalExtra", "Mem"}), 16318481ULL * 1024);
  EXPECT_EQ(proc_bytes(dir.file("absent"), {"MemTotal"}), std::nullopt);
}

}  // namespace
}  // namespace sluice
