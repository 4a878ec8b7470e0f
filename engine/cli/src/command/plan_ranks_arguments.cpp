// The options of plan for many ranks.

#include <cmath>
#include <sstream>
#include <string_view>

#include "command/command_line.hpp"
#include "command/run_arguments.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"

namespace sluice::cli {

namespace {

constexpr unsigned kMostRanks = 1U << 20U;
constexpr unsigned kMostDrives = 1024;

// A number with a letter for its thousands: "70B", "1.5T", "400T".
double to_quantity(const std::string& flag, const std::string& text) {
  constexpr std::string_view kLetters = "KMGTP";
  const std::string expected =
      flag + ": expected a number as in 350M, 70B or 1.5T, found \"" + text + "\"";
  SLUICE_CHECK(!text.empty(), expected);
  char letter = static_cast<char>(std::toupper(static_cast<unsigned char>(text.back())));
  if (letter == 'B') letter = 'G';  // billions
  const std::size_t power = kLetters.find(letter);
  const bool has_letter = power != std::string_view::npos;
  const std::string number = has_letter ? text.substr(0, text.size() - 1) : text;
  double value = 0;
  try {
    value = to_real(flag, number);
  } catch (const InvalidArgument&) {
    throw InvalidArgument(expected);
  }
  if (has_letter) value *= std::pow(1000.0, static_cast<double>(power + 1));
  SLUICE_CHECK(value >= 1 && value <= 1e18, expected);
  return value;
}

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() > end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// "50GB/s", "400Gbit/s". A small b alone is read as bits by some and as bytes by others.
double to_rate(const std::string& flag, const std::string& text) {
  const std::string expected =
      flag + ": expected a rate as in 50GB/s or 400Gbit/s, found \"" + text + "\"";
  SLUICE_CHECK(ends_with(text, "/s"), expected);
  const std::string amount = text.substr(0, text.size() - 2);
  const bool in_bits = ends_with(amount, "bit");
  SLUICE_CHECK(in_bits || (ends_with(amount, "B") && !ends_with(amount, "b")), expected);
  try {
    const auto bytes = static_cast<double>(
        parse_bytes(in_bits ? amount.substr(0, amount.size() - 3) + "B" : amount));
    SLUICE_CHECK(bytes > 0, expected);
    return in_bits ? bytes / 8 : bytes;
  } catch (const InvalidArgument&) {
    throw InvalidArgument(expected);
  }
}

void add_rate(CLI::App& command, const std::string& flag, const std::string& help, double& target) {
  add_option(command, flag, "RATE", Need::optional, help,
             [flag, &target](const std::string& text) { target = to_rate(flag, text); });
}

void add_quantity(CLI::App& command, const std::string& flag, const std::string& help,
                  double& target) {
  add_option(command, flag, "N", Need::optional, help,
             [flag, &target](const std::string& text) { target = to_quantity(flag, text); });
}

void add_memory(CLI::App& command, const std::string& flag, const std::string& help,
                std::uint64_t& target) {
  add_option(command, flag, "BYTES", Need::optional, help,
             [flag, &target](const std::string& text) {
               try {
                 target = parse_bytes(text);
               } catch (const InvalidArgument& error) {
                 throw InvalidArgument(flag + ": " + error.what());
               }
               SLUICE_CHECK(target > 0, flag + ": 0 bytes");
             });
}

std::vector<std::uint64_t> to_ranks(const std::string& text) {
  std::vector<std::uint64_t> ranks;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');)
    ranks.push_back(to_count("--ranks", part, kMostRanks));
  SLUICE_CHECK(!ranks.empty() && text.back() != ',',
               "--ranks: expected numbers as in 8,64,512, found \"" + text + "\"");
  return ranks;
}

// Options that ask for many ranks, and those of one run that have no meaning there.
constexpr const char* kOfRanks[] = {
    "--parameters", "--ranks-per-host", "--network",     "--drives", "--drive-rate",
    "--host-link",  "--flops",          "--update-rate", "--memory", "--gpu-memory"};
// Rates that --probe measures.
constexpr const char* kOfHardware[] = {"--drives", "--drive-rate", "--host-link", "--flops",
                                       "--update-rate"};
constexpr const char* kOfOneRun[] = {"--data",   "--init",      "--steps",
                                     "--epochs", "--eval-data", "--max"};

}  // namespace

void add_ranks_options(CLI::App& command, RanksArguments& arguments) {
  add_option(command, "--ranks", "LIST", Need::optional,
             "plan for so many ranks, as in 8,64,512: bytes of each on every tier, and seconds of "
             "each link, by formulas; --config and --model are optional then",
             [&arguments](const std::string& text) { arguments.ranks = to_ranks(text); });
  add_option(command, "--parameters", "N", Need::optional,
             "with --ranks: a GPT of about N parameters, in place of --model (70B, 1T)",
             [&arguments](const std::string& text) {
               arguments.parameters = static_cast<std::uint64_t>(to_quantity("--parameters", text));
             });
  add_option(command, "--ranks-per-host", "N", Need::optional,
             "with --ranks: ranks that share a host's memory, drives and processors (default 8)",
             [&arguments](const std::string& text) {
               arguments.ranks_per_host = to_count("--ranks-per-host", text, kMostRanks);
             });
  add_rate(command, "--network", "with --ranks: what each rank sends and receives (default 25GB/s)",
           arguments.network_bytes);
  add_option(command, "--drives", "N", Need::optional,
             "with --ranks: NVMe drives of a host (default 1)",
             [&arguments](const std::string& text) {
               arguments.drives = to_count("--drives", text, kMostDrives);
             });
  add_rate(command, "--drive-rate",
           "with --ranks: rate of a drive, reads and writes added (default 6GB/s)",
           arguments.drive_bytes);
  add_rate(command, "--host-link",
           "with --ranks: rate of a rank between host and device (default 25GB/s)",
           arguments.link_bytes);
  add_quantity(command, "--flops",
               "with --ranks: floating point operations a second of a rank (default 400T)",
               arguments.flops);
  add_quantity(command, "--update-rate",
               "with --ranks: parameters a second that a host's processors update (default 7G)",
               arguments.updates);
  add_memory(command, "--memory", "with --ranks: memory of a host, to compare with",
             arguments.host_memory_bytes);
  add_memory(command, "--gpu-memory", "with --ranks: device memory of a rank, to compare with",
             arguments.gpu_memory_bytes);
}

void check_ranks(const CLI::App& command, const PlanArguments& arguments,
                 const std::string& model_path) {
  if (arguments.ranks.ranks.empty()) {
    for (const char* flag : kOfRanks)
      SLUICE_CHECK(command.get_option(flag)->count() == 0, std::string(flag) + " needs --ranks");
    return;
  }
  for (const char* flag : kOfOneRun) {
    SLUICE_CHECK(command.get_option(flag)->count() == 0,
                 std::string(flag) + " is for the plan of one run, without --ranks");
  }
  const bool stores = command.get_option("--rates")->count() > 0;
  SLUICE_CHECK(!stores || !model_path.empty(),
               "--rates has rates of a model's plan: give --config FILE and --model FILE");
  if (arguments.probe) {
    SLUICE_CHECK(command.get_option("--config")->count() > 0 && !model_path.empty(),
                 "--probe measures with a plan: give --config FILE and --model FILE");
  }
  for (const char* flag : kOfHardware) {
    const bool given = command.get_option(flag)->count() > 0;
    SLUICE_CHECK(!given || !arguments.probe,
                 std::string(flag) + " gives what --probe measures; leave out one of them");
    SLUICE_CHECK(!given || !stores,
                 std::string(flag) + " gives what --rates has; leave out one of them");
  }
  SLUICE_CHECK(arguments.ranks.parameters == 0 || model_path.empty(),
               "--parameters and --model exclude each other; give one");
  SLUICE_CHECK(arguments.ranks.parameters > 0 || !model_path.empty(),
               "--ranks needs a model: --parameters N, or --model FILE");
}

}  // namespace sluice::cli
