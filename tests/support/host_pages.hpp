#pragma once
// HostPages: PageMemory in host memory, as a GPU's driver maps it. Addresses without a mapping
// cannot be touched. Work is a count that a test moves on: a mark waits until its work has ended.

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

#include "memory/page_memory.hpp"
#include "sluice/base/error.hpp"

namespace sluice::test {

struct Mappings {
  std::uint64_t made = 0;
  std::uint64_t ended = 0;
  std::uint64_t pages = 0;  // mapped now
};

// Thread-compatible: callers synchronise.
class HostPages final : public offload::PageMemory {
 public:
  // `on_wait` is called when a mark is waited for, with the mark's number, from 1.
  HostPages(std::uint64_t page_bytes, std::uint64_t page_count,
            std::function<void(std::uint64_t)> on_wait = {})
      : page_bytes_(page_bytes),
        size_bytes_(page_bytes * page_count),
        on_wait_(std::move(on_wait)),
        file_(::memfd_create("host-pages", 0)) {
    if (file_ < 0 || ::ftruncate(file_, static_cast<off_t>(size_bytes_)) != 0)
      throw std::runtime_error("memfd");
    for (std::uint64_t i = page_count; i-- > 0;) unused_.push_back(i);
  }
  ~HostPages() override { ::close(file_); }

  std::uint64_t page_bytes() const override { return page_bytes_; }
  const Mappings& mappings() const { return mappings_; }
  Page create() override {
    if (unused_.empty()) throw OutOfMemory("device", page_bytes_, 0, "a page");
    const Page page = unused_.back();
    unused_.pop_back();
    return page;
  }
  void release(Page page) noexcept override { unused_.push_back(page); }
  std::byte* reserve(std::uint64_t size_bytes) override {
    void* at =
        ::mmap(nullptr, size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::runtime_error("mmap");
    return static_cast<std::byte*>(at);
  }
  void unreserve(std::byte* begin, std::uint64_t size_bytes) noexcept override {
    ::munmap(begin, size_bytes);
  }
  void map(std::byte* begin, std::span<const Page> pages) override {
    for (std::size_t i = 0; i < pages.size(); ++i) {
      void* at = ::mmap(begin + i * page_bytes_, page_bytes_, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_FIXED, file_, static_cast<off_t>(pages[i] * page_bytes_));
      if (at == MAP_FAILED) throw std::runtime_error("mmap");
    }
    ++mappings_.made;
    mappings_.pages += pages.size();
  }
  void unmap(std::byte* begin, std::uint64_t size_bytes) noexcept override {
    // Fails only where the system has no memory for its own tables; the pages stay mapped then.
    (void)::mmap(begin, size_bytes, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    ++mappings_.ended;
    mappings_.pages -= size_bytes / page_bytes_;
  }
  std::unique_ptr<offload::WorkMark> mark_work() override {
    struct Mark final : offload::WorkMark {
      Mark(const std::function<void(std::uint64_t)>& wait, std::uint64_t own)
          : on_wait(wait), number(own) {}
      void wait() override {
        if (on_wait) on_wait(number);
      }
      const std::function<void(std::uint64_t)>& on_wait;
      const std::uint64_t number;
    };
    return std::make_unique<Mark>(on_wait_, ++marks_);
  }

 private:
  const std::uint64_t page_bytes_;
  const std::uint64_t size_bytes_;
  const std::function<void(std::uint64_t)> on_wait_;
  const int file_;
  std::vector<Page> unused_;
  std::uint64_t marks_ = 0;
  Mappings mappings_;
};

}  // namespace sluice::test
