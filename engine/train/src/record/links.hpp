#pragma once
// The links of a step by their names in reports, and sums over them. Thread-safe: constants and
// free functions without state.

#include <cstdint>
#include <utility>

#include "sluice/offload/mover.hpp"
#include "sluice/train/report.hpp"
#include "update/updater_resources.hpp"

namespace sluice::train {

inline constexpr std::pair<const char*, std::uint64_t LinkBytes::*> kByteLinks[] = {
    {"h2d", &LinkBytes::h2d},
    {"d2h", &LinkBytes::d2h},
    {"nvme_read", &LinkBytes::nvme_read},
    {"nvme_write", &LinkBytes::nvme_written},
    {"nvme_cached", &LinkBytes::nvme_cached},
    {"network", &LinkBytes::network}};

inline constexpr std::pair<const char*, double LinkSeconds::*> kTimedLinks[] = {
    {"compute", &LinkSeconds::compute},
    {"h2d", &LinkSeconds::h2d},
    {"d2h", &LinkSeconds::d2h},
    {"nvme_read", &LinkSeconds::nvme_read},
    {"nvme_write", &LinkSeconds::nvme_written},
    {"update", &LinkSeconds::update},
    {"network", &LinkSeconds::network}};

inline LinkBytes bytes_of(const offload::MoverBytes& moved) {
  return {.h2d = moved.to_device,
          .d2h = moved.from_device,
          .nvme_read = moved.read,
          .nvme_written = moved.written};
}
inline LinkBytes bytes_of(const UpdateCounters& update) {
  return {.h2d = update.h2d_bytes,
          .d2h = update.d2h_bytes,
          .nvme_read = update.nvme_read_bytes,
          .nvme_written = update.nvme_written_bytes,
          .nvme_cached = update.nvme_cached_bytes};
}
inline LinkBytes minus(LinkBytes a, const LinkBytes& b) {
  for (const auto& [name, link] : kByteLinks) a.*link -= b.*link;
  return a;
}
inline void add(LinkBytes& to, const LinkBytes& more) {
  for (const auto& [name, link] : kByteLinks) to.*link += more.*link;
}
inline LinkSeconds minus(LinkSeconds a, const LinkSeconds& b) {
  for (const auto& [name, link] : kTimedLinks) a.*link -= b.*link;
  return a;
}
inline void add(LinkSeconds& to, const LinkSeconds& more) {
  for (const auto& [name, link] : kTimedLinks) to.*link += more.*link;
}
// Seconds on all links but that of the model.
inline double sum_of_stalls(const LinkSeconds& seconds) {
  double sum = 0;
  for (const auto& [name, link] : kTimedLinks)
    sum += link == &LinkSeconds::compute ? 0 : seconds.*link;
  return sum;
}

}  // namespace sluice::train
