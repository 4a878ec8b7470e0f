#include "ranks/shared_facts.hpp"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "ranks/same_inputs.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/host_name.hpp"
#include "sluice/models/rank_commit.hpp"
#include "sluice/nvme/file.hpp"
#include "sluice/offload/cuda_device.hpp"
#include "sluice/offload/swap_state.hpp"
#include "sluice/plan/storage_choices.hpp"
#include "sluice/zero/nccl.hpp"

namespace sluice::train {

namespace {

// Places in the numbers of the facts.
enum Number : std::size_t {
  total_memory,
  available_memory,
  memlock,
  address_space,
  checkpoints,
  cores,
  gpu_total,  // 0: this rank has no GPU
  gpu_free,
  gpu_page,
  first_directory,
};

// The numbers of the facts that a plan follows from. A file system's id counts only by the
// directories that share it.
std::vector<std::uint64_t> numbers_of(const plan::MachineFacts& facts) {
  std::vector<std::uint64_t> numbers = {
      facts.total_memory_bytes, facts.available_memory_bytes,
      facts.memlock_bytes,      facts.address_space_bytes,
      facts.checkpoint_bytes,   static_cast<std::uint64_t>(facts.cores)};
  const plan::GpuFacts gpu = facts.device.gpu.value_or(plan::GpuFacts{});
  for (const std::uint64_t number : {gpu.total_bytes, gpu.free_bytes, gpu.page_bytes})
    numbers.push_back(number);
  for (const auto& [directory, free] : facts.free_disk_bytes) numbers.push_back(free);
  for (const auto& [directory, file_system] : facts.file_systems) {
    const auto is_same = [id = file_system](const auto& other) { return other.second == id; };
    const auto first = std::find_if(facts.file_systems.begin(), facts.file_systems.end(), is_same);
    numbers.push_back(static_cast<std::uint64_t>(first - facts.file_systems.begin()));
  }
  return numbers;
}

void set_numbers(plan::MachineFacts& facts, const std::vector<std::uint64_t>& numbers) {
  facts.total_memory_bytes = numbers[total_memory];
  facts.available_memory_bytes = numbers[available_memory];
  facts.memlock_bytes = numbers[memlock];
  facts.address_space_bytes = numbers[address_space];
  facts.checkpoint_bytes = numbers[checkpoints];
  facts.cores = static_cast<int>(numbers[cores]);
  if (facts.device.gpu) {
    facts.device.gpu->total_bytes = numbers[gpu_total];
    facts.device.gpu->free_bytes = numbers[gpu_free];
    facts.device.gpu->page_bytes = numbers[gpu_page];
  }
  std::size_t next = first_directory;
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

// The directories of the facts, as the configuration names them for all ranks.
std::vector<std::string> directories_of(const plan::MachineFacts& facts) {
  std::vector<std::string> found;
  const auto add = [&](const std::string& directory) {
    const std::filesystem::path path(directory);
    found.push_back(offload::rank_folder_of(directory) ? path.parent_path().string() : directory);
  };
  for (const auto& [directory, free] : facts.free_disk_bytes) add(directory);
  for (const auto& [directory, file_system] : facts.file_systems) add(directory);
  return found;
}

constexpr std::size_t kFirstDirectoryText = 2;

// The facts of one rank, as the ranks exchange them: numbers, host, then directories.
std::string facts_text(const plan::MachineFacts& facts) {
  std::vector<std::string> texts = directories_of(facts);
  texts.insert(texts.begin(), {to_text(numbers_of(facts)), host_name()});
  return models::pack_texts(texts);
}

std::vector<std::uint64_t> numbers_in(const std::string& facts) {
  return to_numbers(models::unpack_texts(facts).at(0));
}

// The first directory of `one` that is not in `other`; empty: none.
std::string first_missing(const std::string& one, const std::string& other) {
  const std::vector<std::string> has = models::unpack_texts(one);
  const std::vector<std::string> lacks = models::unpack_texts(other);
  for (std::size_t i = kFirstDirectoryText; i < has.size(); ++i) {
    if (std::count(has.begin() + kFirstDirectoryText, has.end(), has[i]) >
        std::count(lacks.begin() + kFirstDirectoryText, lacks.end(), has[i]))
      return has[i];
  }
  return "";
}

// The first difference that no plan for the least can bridge; empty: none. Every rank finds the
// same one. `all`: the ranks' facts.
std::string find_difference(const std::vector<std::string>& all) {
  const std::vector<std::uint64_t> first = numbers_in(all[0]);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const std::vector<std::uint64_t> other = numbers_in(all[rank]);
    const std::string name = "rank " + std::to_string(rank);
    if (other.size() != first.size()) {
      const std::string missing = first_missing(all[0], all[rank]);
      return missing.empty()
                 ? "rank 0 does not have the directory " + first_missing(all[rank], all[0]) +
                       ", which " + name + " has"
                 : name + " does not have the directory " + missing + ", which rank 0 has";
    }
    if ((other[gpu_total] == 0) != (first[gpu_total] == 0))
      return name +
             " and rank 0: one has a GPU, and one has none; \"sluice\": {\"device\": \"host\"} "
             "trains without GPUs";
  }
  return "";
}

// `owners`: for each number of the facts the rank that has the least. `texts`: of each rank.
void name_poorest(plan::MachineFacts& facts, const std::vector<std::size_t>& owners,
                  const std::vector<std::vector<std::string>>& texts) {
  const auto name = [&](std::size_t number) {
    return "rank " + std::to_string(owners[number]) + " on host " + texts[owners[number]].at(1);
  };
  facts.poorest = {.memory = name(available_memory),
                   .memlock = name(memlock),
                   .address_space = name(address_space),
                   .gpu = name(gpu_free),
                   .disks = {}};
  for (std::size_t i = 0; i < facts.free_disk_bytes.size(); ++i) {
    const std::size_t number = first_directory + i;
    std::string directory = texts[owners[number]].at(kFirstDirectoryText + i);
    if (offload::rank_folder_of(facts.free_disk_bytes[i].first))
      directory = offload::rank_folder(directory, static_cast<int>(owners[number]),
                                       static_cast<int>(texts.size()));
    facts.poorest.disks.push_back(directory + " of " + name(number));
  }
}

void set_least(plan::MachineFacts& facts, const std::vector<std::string>& all) {
  std::vector<std::vector<std::string>> texts;
  texts.reserve(all.size());
  for (const std::string& one : all) texts.push_back(models::unpack_texts(one));
  std::vector<std::uint64_t> least = to_numbers(texts[0].at(0));
  std::vector<std::size_t> owners(least.size());
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    const std::vector<std::uint64_t> other = to_numbers(texts[rank].at(0));
    for (std::size_t i = 0; i < least.size(); ++i) {
      if (other[i] >= least[i]) continue;
      least[i] = other[i];
      owners[i] = rank;
    }
  }
  set_numbers(facts, least);
  name_poorest(facts, owners, texts);
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

// Names this rank's GPU among those of all hosts; empty: it has none.
std::string gpu_of_all(const plan::MachineFacts& facts) {
  if (!facts.device.gpu) return "";
  return host_name() + " " + facts.device.gpu->bus_id;
}

// Why this rank cannot exchange its GPU's memory by NCCL; empty: it can.
std::string find_why_staged(const plan::GpuFacts& gpu) {
  if (gpu.ranks > 1)
    return std::to_string(gpu.ranks) + " ranks share " + plan::name_of(gpu) +
           ", and NCCL needs a GPU for each";
  return zero::find_why_no_nccl();
}

// Sets how ranks exchange the memory of their GPUs: all by NCCL, or all through host memory.
void choose_exchange(RankGroup& ranks, const config::TrainConfig& config,
                     plan::MachineFacts& facts) {
  const std::string mine = facts.device.gpu ? find_why_staged(*facts.device.gpu) : "";
  const std::vector<std::string> all = ranks.exchange(mine, "whether NCCL can be used");
  if (!facts.device.gpu) return;
  const auto first = std::find_if(all.begin(), all.end(),
                                  [](const std::string& reason) { return !reason.empty(); });
  facts.device.has_nccl = first == all.end();
  facts.ranks_choice = "ranks exchange the memory of their GPUs by NCCL";
  if (facts.device.has_nccl) return;
  facts.ranks_choice = "ranks exchange the memory of their GPUs through host memory: rank " +
                       std::to_string(first - all.begin()) + ": " + *first;
  ranks.together("the exchange of GPU memory",
                 [&] { plan::refuse_if_strict(config, facts.ranks_choice); });
}

}  // namespace

config::ComputeDevice device_of_rank(const config::ComputeDevice& asked, const RankPlace& place) {
  config::ComputeDevice device = asked;
  if (place.size == 1 || asked.index || asked.kind == config::ComputeDevice::Kind::host)
    return device;
  const std::size_t visible = offload::find_cuda_devices().devices.size();
  if (visible > 0) device.index = place.local_rank % static_cast<int>(visible);
  return device;
}

void share_gpu(plan::MachineFacts& facts, zero::Communicator& ranks) {
  if (ranks.world_size() == 1) return;
  const std::string mine = gpu_of_all(facts);
  const std::vector<std::string> all = models::gather_texts(ranks, mine, "the ranks' GPUs");
  if (!facts.device.gpu) return;
  plan::GpuFacts& gpu = *facts.device.gpu;
  gpu.ranks = static_cast<int>(std::count(all.begin(), all.end(), mine));
  gpu.free_bytes /= static_cast<std::uint64_t>(gpu.ranks);
}

plan::MachineFacts share_of_host(plan::MachineFacts facts, const RankPlace& place) {
  if (place.size == 1) return facts;
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

void take_least(plan::MachineFacts& facts, zero::Communicator& ranks) {
  const std::vector<std::string> all =
      models::gather_texts(ranks, facts_text(facts), "the facts of the ranks' machines");
  const std::string mistake = find_difference(all);
  if (!mistake.empty()) throw InvalidArgument(mistake);
  set_least(facts, all);
}

plan::MachineFacts shared_facts(RankGroup& ranks, const config::TrainConfig& config) {
  plan::MachineFacts facts;
  ranks.together("the facts of the machine", [&] {
    config::TrainConfig own = config;
    own.sluice.device = device_of_rank(config.sluice.device, ranks.place());
    facts = share_of_host(plan::probe_machine(own), ranks.place());
  });
  if (ranks.size() == 1) return facts;
  share_gpu(facts, ranks.control());
  const std::vector<std::string> all =
      ranks.exchange(facts_text(facts), "the facts of the ranks' machines");
  const std::string mistake = find_difference(all);
  if (!mistake.empty()) ranks.refuse(mistake);
  set_least(facts, all);
  choose_exchange(ranks, config, facts);
  return facts;
}

models::UnitWorkspaces largest_workspaces(RankGroup& ranks, const models::UnitWorkspaces& mine) {
  models::UnitWorkspaces largest = mine;
  std::vector<std::uint64_t*> fields = {&largest.held_bytes};
  for (models::UnitWorkspace* unit : {&largest.embedding, &largest.block, &largest.head})
    for (std::uint64_t* field :
         {&unit->forward_bytes, &unit->backward_bytes, &unit->keeping_bytes, &unit->kept_bytes})
      fields.push_back(field);
  std::vector<std::uint64_t> numbers;
  numbers.reserve(fields.size());
  for (const std::uint64_t* field : fields) numbers.push_back(*field);
  for (const std::string& text : ranks.exchange(to_text(numbers), "the workspaces of the units")) {
    const std::vector<std::uint64_t> others = to_numbers(text);
    for (std::size_t i = 0; i < fields.size(); ++i) *fields[i] = std::max(*fields[i], others[i]);
  }
  return largest;
}

void require_same_plan(RankGroup& ranks, const plan::Plan& plan) {
  require_same_inputs(ranks, {{"plan", fingerprint(plan)}});
}

void require_same_plan(zero::Communicator& ranks, const plan::Plan& plan) {
  const std::vector<std::string> all =
      models::gather_texts(ranks, fingerprint(plan), "the ranks' plans");
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw InvalidArgument("rank " + std::to_string(rank) +
                          " plans this model otherwise than rank 0 does; start all ranks with one "
                          "script, one configuration and one version of Sluice");
  }
}

}  // namespace sluice::train
