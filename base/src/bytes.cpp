#include "sluice/base/bytes.hpp"

#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"

namespace sluice {

std::uint64_t checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  SLUICE_CHECK(!__builtin_add_overflow(a, b, &sum),
               "byte count overflows 64 bits: " + std::to_string(a) + " + " + std::to_string(b));
  return sum;
}

std::uint64_t checked_mul(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  SLUICE_CHECK(!__builtin_mul_overflow(a, b, &product),
               "byte count overflows 64 bits: " + std::to_string(a) + " * " + std::to_string(b));
  return product;
}

std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  SLUICE_CHECK(alignment > 0, "alignment of 0");
  return checked_mul(ceil_div(value, alignment), alignment);
}

namespace {

struct Unit {
  std::string_view name;
  std::uint64_t bytes;
};

// A letter alone is binary, as fio, dd and most tools of storage take it.
constexpr std::array<Unit, 13> kByteUnits = {{{"B", 1},
                                              {"KB", 1000},
                                              {"MB", 1000ULL * 1000},
                                              {"GB", 1000ULL * 1000 * 1000},
                                              {"TB", 1000ULL * 1000 * 1000 * 1000},
                                              {"KiB", kKiB},
                                              {"MiB", kMiB},
                                              {"GiB", kGiB},
                                              {"TiB", 1024 * kGiB},
                                              {"K", kKiB},
                                              {"M", kMiB},
                                              {"G", kGiB},
                                              {"T", 1024 * kGiB}}};

// The unit that a typing mistake meant. A unit with another first letter is another size: "PB" is
// no mistyped "B".
std::string nearest_unit(std::string_view name, const std::vector<std::string_view>& names) {
  const std::string nearest = nearest_name(name, names);
  return nearest.empty() || equal_ignoring_case(nearest.substr(0, 1), name.substr(0, 1)) ? nearest
                                                                                         : "";
}

std::uint64_t unit_bytes(std::string_view name, std::string_view text) {
  std::vector<std::string_view> names;
  for (const Unit& unit : kByteUnits) {
    if (equal_ignoring_case(unit.name, name)) return unit.bytes;
    names.push_back(unit.name);
  }
  throw InvalidArgument("\"" + std::string(text) + "\" has the unknown unit \"" +
                        std::string(name) + "\"" + did_you_mean(nearest_unit(name, names)) +
                        " (units: B, KB, MB, GB, TB, KiB or K, MiB or M, GiB or G, TiB or T)");
}

}  // namespace

std::uint64_t parse_bytes(std::string_view text) {
  const std::string copy(text);
  const auto fail = [&](const char* why) -> void {
    throw InvalidArgument("\"" + copy + "\" is not a number of bytes: " + why +
                          " (write for example 4096, \"64MiB\" or \"1.5GB\")");
  };
  std::size_t digits_end = 0;
  while (digits_end < copy.size() &&
         (std::isdigit(static_cast<unsigned char>(copy[digits_end])) || copy[digits_end] == '.')) {
    ++digits_end;
  }
  if (digits_end == 0) fail(copy.starts_with('-') ? "it is negative" : "it has no number");
  const std::string number = copy.substr(0, digits_end);
  if (number.find('.') != number.rfind('.') || number == ".") fail("two decimal points");
  std::size_t unit_begin = digits_end;
  while (unit_begin < copy.size() && copy[unit_begin] == ' ') ++unit_begin;
  const std::string_view unit = std::string_view(copy).substr(unit_begin);
  const std::uint64_t scale = unit.empty() ? 1 : unit_bytes(unit, text);
  if (number.find('.') == std::string::npos) {
    errno = 0;
    const unsigned long long whole = std::strtoull(number.c_str(), nullptr, 10);
    if (errno == ERANGE) fail("it is beyond 64 bits");
    return checked_mul(whole, scale);
  }
  if (scale == 1) fail("a byte cannot be divided");
  const long double value = std::strtold(number.c_str(), nullptr) * static_cast<long double>(scale);
  if (value >= 18446744073709551615.0L) fail("it is beyond 64 bits");
  return static_cast<std::uint64_t>(std::floor(value));
}

}  // namespace sluice
