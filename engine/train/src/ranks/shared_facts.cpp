#include "ranks/shared_facts.hpp"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "ranks/same_inputs.hpp"
#include "sluice/base/error.hpp"
#include "sluice/nvme/file.hpp"

namespace sluice::train {

namespace {

// The numbers of the facts that a plan follows from, in a fixed order. Of a file system's id only
// the directories that share it count.
std::vector<std::uint64_t> numbers_of(const plan::MachineFacts& facts) {
  std::vector<std::uint64_t> numbers = {facts.total_memory_bytes, facts.available_memory_bytes,
                                        facts.memlock_bytes, facts.address_space_bytes,
                                        static_cast<std::uint64_t>(facts.cores)};
  for (const auto& [directory, free] : facts.free_disk_bytes) numbers.push_back(free);
  for (const auto& [directory, file_system] : facts.file_systems) {
    const auto is_same = [id = file_system](const auto& other) { return other.second == id; };
    const auto first = std::find_if(facts.file_systems.begin(), facts.file_systems.end(), is_same);
    numbers.push_back(static_cast<std::uint64_t>(first - facts.file_systems.begin()));
  }
  return numbers;
}

void set_numbers(plan::MachineFacts& facts, const std::vector<std::uint64_t>& numbers) {
  facts.total_memory_bytes = numbers[0];
  facts.available_memory_bytes = numbers[1];
  facts.memlock_bytes = numbers[2];
  facts.address_space_bytes = numbers[3];
  facts.cores = static_cast<int>(numbers[4]);
  std::size_t next = 5;
  for (auto& [directory, free] : facts.free_disk_bytes) free = numbers[next++];
  for (auto& [directory, file_system] : facts.file_systems) file_system = numbers[next++];
}

std::string to_text(const std::vector<std::uint64_t>& numbers) {
  std::string text;
  for (const std::uint64_t number : numbers) text += std::to_string(number) + " ";
  return text;
}

std::vector<std::uint64_t> to_numbers(const std::string& text) {
  std::istringstream fields(text);
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t number = 0; fields >> number;) numbers.push_back(number);
  return numbers;
}

// The plan without the names of this rank's directories.
std::string fingerprint(const plan::Plan& plan) {
  std::vector<std::uint64_t> numbers = {
      plan.planned.tiers.device,
      plan.planned.tiers.host,
      plan.planned.tiers.nvme,
      plan.schedule.passes.each,
      plan.schedule.passes.last,
      static_cast<std::uint64_t>(plan.schedule.prefetch_units),
      static_cast<std::uint64_t>(plan.schedule.gradients_in_flight),
      static_cast<std::uint64_t>(plan.schedule.threads.compute),
      plan.rings.update.tile_elements,
      plan.rings.mover.tile_bytes,
      static_cast<std::uint64_t>(plan.rings.gradient_slots)};
  for (const plan::UnitPlacement& unit : plan.units) {
    for (const offload::Tier tier : {unit.weights, unit.gradients, unit.states})
      numbers.push_back(static_cast<std::uint64_t>(tier));
    numbers.push_back((unit.gathered_until_backward ? 2U : 0U) +
                      (unit.activations_saved ? 1U : 0U));
  }
  return to_text(numbers);
}

}  // namespace

plan::MachineFacts share_of_host(plan::MachineFacts facts, const RankPlace& place) {
  if (place.size == 1) return facts;
  SLUICE_CHECK(!facts.device.gpu, std::to_string(place.size) +
                                      " ranks train on CPUs only, and this configuration chooses " +
                                      facts.device.gpu->name +
                                      ": set \"sluice\": {\"device\": \"host\"}");
  const auto ranks = static_cast<std::uint64_t>(place.local_size);
  facts.available_memory_bytes /= ranks;
  if (facts.memlock_bytes != std::numeric_limits<std::uint64_t>::max())
    facts.memlock_bytes /= ranks;
  facts.cores = std::max(facts.cores / place.local_size, 1);
  for (auto& [directory, free] : facts.free_disk_bytes) {
    // The rest of `free` is in files of this rank, which the run replaces.
    std::error_code error;
    const bool exists = std::filesystem::exists(directory, error);
    const std::uint64_t shared = exists ? std::min(nvme::free_disk_bytes(directory), free) : free;
    free = free - shared + shared / ranks;
  }
  return facts;
}

plan::MachineFacts shared_facts(RankGroup& ranks, const config::TrainConfig& config) {
  plan::MachineFacts facts;
  ranks.together("the facts of the machine",
                 [&] { facts = share_of_host(plan::probe_machine(config), ranks.place()); });
  if (ranks.size() == 1) return facts;
  std::vector<std::uint64_t> least = numbers_of(facts);
  const std::vector<std::string> all =
      ranks.exchange(to_text(least), "the facts of the ranks' machines");
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::vector<std::uint64_t> other = to_numbers(all[rank]);
    if (other.size() != to_numbers(all[0]).size())
      ranks.refuse("rank " + std::to_string(rank) +
                   " does not have all directories of the configuration that rank 0 has");
    for (std::size_t i = 0; i < least.size(); ++i) least[i] = std::min(least[i], other[i]);
  }
  set_numbers(facts, least);
  return facts;
}

void require_same_plan(RankGroup& ranks, const plan::Plan& plan) {
  require_same_inputs(ranks, {{"plan", fingerprint(plan)}});
}

}  // namespace sluice::train
