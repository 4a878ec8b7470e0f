#pragma once
// CallHeader: what a rank tells the others about its call before any payload, and the one place
// where the calls of several ranks are compared. Not installed. Thread-safe: values.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "sluice/zero/rank_call.hpp"

namespace sluice::zero {

// Sent as it is: the ranks run one program on machines of one kind. Small, so that its first cache
// line has a short label too.
struct CallHeader {
  enum class Kind : std::uint8_t { call, left, aborted };

  Kind kind = Kind::call;
  std::uint8_t operation = 0;
  std::uint8_t element = 0;
  std::uint8_t text_bytes = 0;
  std::int32_t rank = 0;
  std::int32_t root = 0;
  std::uint8_t failure = 0;  // the FailureKind of an abort
  std::uint64_t input_bytes = 0;
  std::uint64_t output_bytes = 0;
  std::array<char, 128>
      text{};  // the call's label (its end, when it is longer), or why it aborts (cut)

  std::string_view text_view() const { return {text.data(), text_bytes}; }
  // Without the memory behind the text.
  std::span<const std::byte> used_bytes() const {
    return std::as_bytes(std::span(this, 1)).first(offsetof(CallHeader, text) + text_bytes);
  }
  RankCall call() const;
};

CallHeader header_of(const HostCall& call, int rank);
CallHeader last_header(CallHeader::Kind kind, int rank, const std::string& text);

// Why the calls cannot be made together; empty: they can. `calls`: of all ranks that take part, in
// the order of ranks; every rank finds the same.
std::string find_disagreement(std::span<const CallHeader* const> calls, int world_size);

}  // namespace sluice::zero
