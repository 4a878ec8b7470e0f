// A tile of more than 2^31 elements. Its memory is a small file mapped repeatedly, so that every
// element of the file is stepped once for each mapping.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/fd.hpp"
#include "sluice/cpu_adam/optimizer.hpp"

namespace sluice::cpu_adam {
namespace {

constexpr std::size_t kPeriod = 1U << 20U;  // elements of the file
constexpr std::size_t kRepeats = 2'048;     // mappings: 2^31 elements
constexpr std::size_t kMore = 1'001;        // elements of one more mapping
constexpr std::size_t kCount = kPeriod * kRepeats + kMore;

// kCount elements of T; elements kPeriod apart share memory.
template <class T>
class Repeated {
 public:
  explicit Repeated(T value) : file_(::memfd_create("repeated", 0)) {
    if (!file_) throw IoError(errno, "memfd_create", "repeated");
    constexpr std::size_t kFileBytes = kPeriod * sizeof(T);
    SLUICE_SYSCALL(::ftruncate(file_.get(), kFileBytes), "repeated");
    void* const begin =
        ::mmap(nullptr, kSizeBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin == MAP_FAILED) throw IoError(errno, "mmap", "repeated");
    begin_ = static_cast<std::byte*>(begin);
    for (std::size_t at = 0; at < kSizeBytes; at += kFileBytes) {
      void* const part = ::mmap(begin_ + at, kFileBytes, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_FIXED, file_.get(), 0);
      if (part == MAP_FAILED) throw IoError(errno, "mmap", "repeated");
    }
    for (T& element : span().first(kPeriod)) element = value;
  }
  ~Repeated() { ::munmap(begin_, kSizeBytes); }
  Repeated(const Repeated&) = delete;
  Repeated& operator=(const Repeated&) = delete;
  std::span<T> span() const { return {reinterpret_cast<T*>(begin_), kCount}; }

 private:
  static constexpr std::size_t kSizeBytes = (kRepeats + 1) * kPeriod * sizeof(T);
  UniqueFd file_;
  std::byte* begin_ = nullptr;
};

TEST(HugeTile, StepsEveryElementBeyond2To31) {
  const OptimizerConfig config = SgdConfig{.learning_rate = 1e-3, .momentum = 0.9};
  const Repeated<float> p(1.0F), m(0.01F);
  const Repeated<Bf16> gradient(to_bf16(0.5F));
  step_tile(config, {.step = 7},
            {.master = p.span(),
             .moments = {m.span()},
             .gradient = std::span<const Bf16>(gradient.span())});

  // Steps two separate elements as often as the file's are mapped, the first one once more.
  std::vector<float> expected_p(2, 1.0F), expected_m(2, 0.01F);
  const std::vector<Bf16> expected_gradient(2, to_bf16(0.5F));
  const auto step_first = [&](std::size_t count) {
    step_tile(config, {.step = 7},
              {.master = std::span(expected_p).first(count),
               .moments = {std::span(expected_m).first(count)},
               .gradient = std::span(expected_gradient).first(count)});
  };
  for (std::size_t i = 0; i < kRepeats; ++i) step_first(2);
  step_first(1);
  for (std::size_t i = 0; i < kPeriod; ++i) {
    const std::size_t of = i < kMore ? 0 : 1;
    ASSERT_EQ(p.span()[i], expected_p[of]) << "element " << i;
    ASSERT_EQ(m.span()[i], expected_m[of]) << "element " << i;
  }
  ASSERT_NE(expected_p[0], expected_p[1]) << "one step more must show";
}

}  // namespace
}  // namespace sluice::cpu_adam
