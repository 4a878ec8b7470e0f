// A library of loaded_library_test.cpp: says in which folder it lies.

extern "C" __attribute__((visibility("default"))) const char* folder_name() {
  return FOLDER_NAME;
}
