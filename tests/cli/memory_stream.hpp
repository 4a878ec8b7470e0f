#pragma once
// A stream into memory, for code that writes to a FILE.

#include <cstdio>
#include <cstdlib>
#include <string>

namespace sluice::cli {

// Thread-compatible: callers synchronise.
class MemoryStream {
 public:
  MemoryStream() : stream_(::open_memstream(&text_, &size_)) {}
  ~MemoryStream() {
    std::fclose(stream_);
    std::free(text_);
  }
  MemoryStream(const MemoryStream&) = delete;
  MemoryStream& operator=(const MemoryStream&) = delete;
  std::FILE* get() { return stream_; }
  std::string text() {
    std::fflush(stream_);
    return {text_, size_};
  }

 private:
  char* text_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* stream_;
};

}  // namespace sluice::cli
