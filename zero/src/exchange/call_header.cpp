#include "exchange/call_header.hpp"

#include <algorithm>

namespace sluice::zero {

namespace {

void set_text(CallHeader& header, std::string_view text, std::size_t begin) {
  const std::string_view part = text.substr(begin, header.text.size());
  std::copy(part.begin(), part.end(), header.text.begin());
  header.text_bytes = static_cast<std::uint8_t>(part.size());
}

// The size that all ranks of a call have in common.
std::uint64_t common_bytes(const CallHeader& header) {
  const auto operation = static_cast<Operation>(header.operation);
  return operation == Operation::gather || operation == Operation::send ? header.input_bytes
                                                                        : header.output_bytes;
}

bool is_pair(const CallHeader& a, const CallHeader& b) {
  const auto one = static_cast<Operation>(a.operation);
  const auto other = static_cast<Operation>(b.operation);
  return is_pairwise(one) && is_pairwise(other) && one != other && a.root == b.rank &&
         b.root == a.rank;
}

bool agree(const CallHeader& a, const CallHeader& b) {
  if (common_bytes(a) != common_bytes(b) || a.text_view() != b.text_view()) return false;
  if (is_pair(a, b)) return true;
  return !is_pairwise(static_cast<Operation>(a.operation)) && a.operation == b.operation &&
         a.element == b.element && a.root == b.root;
}

RankCall unlabelled_call(const CallHeader& header) {
  return {static_cast<Operation>(header.operation), static_cast<Element>(header.element),
          header.root, ""};
}

std::string doing(const CallHeader& header) {
  return "rank " + std::to_string(header.rank) + " called " +
         text_of(header.call(), header.input_bytes, header.output_bytes);
}

}  // namespace

RankCall CallHeader::call() const {
  RankCall call = unlabelled_call(*this);
  call.label = text_view();
  return call;
}

CallHeader header_of(const HostCall& call, int rank) {
  CallHeader header;
  header.rank = rank;
  header.operation = static_cast<std::uint8_t>(call.operation);
  header.element = static_cast<std::uint8_t>(call.element);
  header.root = call.root;
  header.input_bytes = call.input.size();
  header.output_bytes = call.output.size();
  const std::size_t kept = std::min(call.label.size(), header.text.size());
  set_text(header, call.label, call.label.size() - kept);
  return header;
}

CallHeader last_header(CallHeader::Kind kind, int rank, const std::string& text) {
  constexpr std::string_view kCut = "...";
  CallHeader header;
  header.kind = kind;
  header.rank = rank;
  const std::size_t most = header.text.size();
  set_text(header, text.size() <= most ? text : text.substr(0, most - kCut.size()).append(kCut), 0);
  return header;
}

std::string find_disagreement(std::span<const CallHeader* const> calls, int world_size) {
  constexpr std::size_t kShown = 8;  // ranks that a message names
  const CallHeader& first = *calls.front();
  const auto other = std::ranges::find_if_not(
      calls.subspan(1), [&](const CallHeader* each) { return agree(first, *each); });
  if (other != calls.end()) {
    std::string text = "ranks disagree: " + doing(first) + "; " + doing(**other);
    std::size_t shown = 2;
    for (auto more = other + 1; more != calls.end() && shown < kShown; ++more, ++shown)
      text += "; " + doing(**more);
    return text;
  }
  for (const CallHeader* each : calls) {
    std::string mistake = find_mistake(unlabelled_call(*each), each->input_bytes,
                                       each->output_bytes, each->rank, world_size);
    if (!mistake.empty()) return mistake;
  }
  return "";
}

}  // namespace sluice::zero
