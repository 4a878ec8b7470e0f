#include "device/device_allocator.hpp"

#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/train/outside_budget.hpp"

namespace sluice::train {

namespace {

thread_local int objects_outside = 0;  // of OutsideBudget, on this thread

// A pool, and the name of its blocks in errors.
struct Budget {
  std::shared_ptr<offload::MemoryPool> pool;
  std::string what_for;
};

// The budget and the size of a block. LibTorch frees a block by its address alone, so both are
// recorded.
struct Block {
  std::shared_ptr<const Budget> budget;  // null: the system's; shared by its tensors
  std::size_t size_bytes;
};

// Thread-safe.
class PoolAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size_bytes) override;
  // oneDNN asks for raw blocks; data and context are the same address.
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t size_bytes) const override {
    std::memcpy(to, from, size_bytes);
  }
  void free(void* data) noexcept;

  // Returns true when there was none.
  bool install(std::shared_ptr<const Budget> budget);
  void uninstall();

 private:
  std::shared_ptr<const Budget> budget() const;

  mutable Mutex mutex_;
  std::shared_ptr<const Budget> budget_ SLUICE_GUARDED_BY(mutex_);
  std::unordered_map<void*, Block> blocks_ SLUICE_GUARDED_BY(mutex_);
};

// LibTorch keeps a pointer to its allocator for the life of the process.
PoolAllocator& installed_allocator() {
  static PoolAllocator* allocator = [] {
    auto* made = new PoolAllocator;
    c10::SetCPUAllocator(made, /*priority=*/100);
    return made;
  }();
  return *allocator;
}

void free_block(void* data) {
  if (data != nullptr) installed_allocator().free(data);
}

bool PoolAllocator::install(std::shared_ptr<const Budget> budget) {
  MutexLock lock(mutex_);
  if (budget_) return false;
  budget_ = std::move(budget);
  return true;
}

void PoolAllocator::uninstall() {
  const std::shared_ptr<const Budget> last = budget();  // not destroyed under the lock
  MutexLock lock(mutex_);
  budget_.reset();
}

std::shared_ptr<const Budget> PoolAllocator::budget() const {
  MutexLock lock(mutex_);
  return budget_;
}

c10::DataPtr PoolAllocator::allocate(std::size_t size_bytes) {
  const c10::Device cpu(c10::DeviceType::CPU);
  if (size_bytes == 0) return {nullptr, nullptr, &free_block, cpu};
  std::shared_ptr<const Budget> from = objects_outside > 0 ? nullptr : budget();
  void* data = nullptr;
  if (from != nullptr) {
    data = from->pool->allocate_raw(size_bytes, from->what_for.c_str());
  } else if (::posix_memalign(&data, 64, size_bytes) != 0) {
    throw OutOfMemory("host", size_bytes, 0, "a tensor");
  }
  MutexLock lock(mutex_);
  blocks_.emplace(data, Block{std::move(from), size_bytes});
  return {data, data, &free_block, cpu};
}

c10::DeleterFnPtr PoolAllocator::raw_deleter() const {
  return &free_block;
}

void PoolAllocator::free(void* data) noexcept {
  Block block{};
  {
    MutexLock lock(mutex_);
    const auto found = blocks_.find(data);
    block = std::move(found->second);
    blocks_.erase(found);
  }
  if (block.budget != nullptr) {
    block.budget->pool->free_raw(data, block.size_bytes);
  } else {
    std::free(data);
  }
}

}  // namespace

DeviceAllocatorScope::DeviceAllocatorScope(std::shared_ptr<offload::MemoryPool> pool,
                                           std::string what_for) {
  SLUICE_CHECK(
      installed_allocator().install(
          std::make_shared<const Budget>(Budget{std::move(pool), std::move(what_for)})),
      "another Engine or run has LibTorch's tensors in its budget: one at a time in a process");
}

DeviceAllocatorScope::~DeviceAllocatorScope() {
  installed_allocator().uninstall();
}

OutsideBudget::OutsideBudget() {
  ++objects_outside;
}

OutsideBudget::~OutsideBudget() {
  --objects_outside;
}

}  // namespace sluice::train
