#pragma once
// Damages files at random: flipped bits, cuts, splices, huge numbers, deep nesting, repeated keys,
// invalid UTF-8 and zero bytes. The result depends on the seed only.
//
// Confined to one thread.

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace sluice::fuzz {

class Mutator {
 public:
  // No file is made longer than `most_bytes`.
  Mutator(std::uint64_t seed, std::size_t most_bytes) : random_(seed), most_bytes_(most_bytes) {}

  // One of `files`, damaged one to four times.
  std::string mutated(const std::vector<std::string>& files);

 private:
  void damage(std::string& text, const std::vector<std::string>& files);
  void insert(std::string& text, const std::string& piece);
  void flip(std::string& text);
  void cut(std::string& text);
  void splice(std::string& text, const std::string& other);
  void replace_number(std::string& text);
  void set_binary_number(std::string& text);
  void repeat_piece(std::string& text);
  void nest(std::string& text);
  void insert_long_run(std::string& text);
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(random_() % count); }
  // Mostly small, now and then up to `most`.
  std::size_t size_up_to(std::size_t most);

  std::mt19937_64 random_;
  std::size_t most_bytes_;
};

}  // namespace sluice::fuzz
