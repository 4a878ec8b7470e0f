#pragma once
// Ranks as threads, and the numbers that tests give to ranks.

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "message_of.hpp"
#include "sluice/base/error.hpp"
#include "sluice/zero/communicator.hpp"

namespace sluice::zero::test {

using sluice::test::message_of;
using Bytes = std::vector<std::byte>;

// Runs `body` for every rank on a thread of its own.
inline void on_threads(std::vector<std::unique_ptr<Communicator>>& ranks,
                       const std::function<void(Communicator&)>& body) {
  std::vector<std::thread> threads;
  threads.reserve(ranks.size());
  for (auto& rank : ranks) threads.emplace_back([&body, &rank] { body(*rank); });
  for (std::thread& thread : threads) thread.join();
}

inline Bytes encode(const std::vector<double>& values, Element element) {
  Bytes bytes(values.size() * size_of(element));
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::byte* to = bytes.data() + i * size_of(element);
    const auto value = static_cast<float>(values[i]);
    const std::uint16_t bits = element == Element::bf16 ? to_bf16(value).bits : to_fp16(value).bits;
    if (element == Element::fp64) std::memcpy(to, &values[i], 8);
    if (element == Element::fp32) std::memcpy(to, &value, 4);
    if (size_of(element) == 2) std::memcpy(to, &bits, 2);
  }
  return bytes;
}

inline double decode(const Bytes& bytes, std::size_t i, Element element) {
  const std::byte* from = bytes.data() + i * size_of(element);
  double value = 0;
  float single = 0;
  std::uint16_t bits = 0;
  if (element == Element::fp64) std::memcpy(&value, from, 8);
  if (element == Element::fp32) std::memcpy(&single, from, 4);
  if (size_of(element) == 2) std::memcpy(&bits, from, 2);
  if (element == Element::bf16) single = to_fp32(Bf16{bits});
  if (element == Element::fp16) single = to_fp32(Fp16{bits});
  return element == Element::fp64 ? value : single;
}

// The numbers of one rank. `exact`: whole numbers, whose sums round nowhere in any order.
inline std::vector<double> numbers(int rank, std::size_t count, bool exact) {
  std::mt19937 random(static_cast<unsigned>(100 + rank));
  std::normal_distribution<float> normal(0.0F, 3.0F);
  std::vector<double> values(count);
  for (double& value : values)
    value = exact ? static_cast<double>(random() % 13) - 6 : static_cast<double>(normal(random));
  return values;
}

}  // namespace sluice::zero::test
