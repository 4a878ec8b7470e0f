#pragma once
// Slices of two sides in turn: Sluice, the peer, and the peer again, which shows the machine's own
// variation; in the opposite order every other round. Thread-safe: free functions without state.

#include <chrono>
#include <cstdio>
#include <vector>

namespace sluice::bench {

template <typename Work>
double seconds_of(const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Slices {
  std::vector<double> ours, peer, again;  // GB/s, one for each round
};

// Runs the rounds. `ours` and `peer` measure one slice and return its GB/s.
template <typename Ours, typename Peer>
void take_round(int round, Slices& slices, const Ours& ours, const Peer& peer) {
  for (int i = 0; i < 3; ++i) {
    const int side = round % 2 == 0 ? i : 2 - i;
    if (side == 0) slices.ours.push_back(ours());
    if (side == 1) slices.peer.push_back(peer());
    if (side == 2) slices.again.push_back(peer());
  }
}

inline void print_values(const char* name, const std::vector<double>& values) {
  std::printf("\"%s\": [", name);
  const char* separator = "";
  for (const double value : values) {
    std::printf("%s%.6g", separator, value);
    separator = ", ";
  }
  std::printf("]");
}

// The slices as a JSON object.
inline void print_slices(const Slices& slices) {
  std::printf("{");
  print_values("ours", slices.ours);
  std::printf(", ");
  print_values("peer", slices.peer);
  std::printf(", ");
  print_values("again", slices.again);
  std::printf("}");
}

}  // namespace sluice::bench
