// Which of several libraries of one name is taken. Each test loads in a child: libraries stay.

#include "sluice/base/file/loaded_library.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "in_child.hpp"

namespace sluice {
namespace {

constexpr const char* kName = "libnames_its_folder.so";
const std::string kFolders = SLUICE_LIBRARY_FOLDERS;  // the loader knows "path" among these

// The folder whose library LoadedLibrary takes, once `loaded` is there.
std::string taken(const std::string& folder, const std::string& loaded = "") {
  return test::run_in_child([&] {
    if (!loaded.empty() && ::dlopen((kFolders + loaded + "/" + kName).c_str(), RTLD_NOW) == nullptr)
      return std::string(::dlerror());
    LoadedLibrary library(kName, folder.empty() ? "" : kFolders + folder);
    const char* (*name)() = nullptr;
    library.find(name, "folder_name");
    return name == nullptr ? library.why_not() : name();
  });
}

TEST(LoadedLibrary, IsThatOfTheFolderBeforeOneThatTheLoaderFinds) {
  EXPECT_EQ(taken("folder"), "folder");
  EXPECT_EQ(taken("absent"), "path");
  EXPECT_EQ(taken(""), "path");
}

TEST(LoadedLibrary, IsTheOneThatTheProcessHas) {
  EXPECT_EQ(taken("folder", "process"), "process");
  EXPECT_EQ(taken("", "process"), "process");
}

TEST(LoadedLibrary, SaysWhatTheLoaderMissesAndWhatToDo) {
  LoadedLibrary library("libabsent.so.7", kFolders + "folder");
  void* function = nullptr;
  library.find(function, "any");
  EXPECT_EQ(library.why_not(),
            "libabsent.so.7: cannot open shared object file: No such file or directory; if it is "
            "installed, name its folder in LD_LIBRARY_PATH");
}

TEST(LoadedLibrary, NamesTheFirstFunctionThatItLacks) {
  const std::string said = test::run_in_child([] {
    LoadedLibrary library(kName);
    void* function = nullptr;
    for (const char* name : {"folder_name", "first", "second"}) library.find(function, name);
    return library.why_not();
  });
  EXPECT_EQ(said, std::string(kName) + " has no first");
}

}  // namespace
}  // namespace sluice
