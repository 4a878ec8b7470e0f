#include "machine/machine_checks.hpp"

#include <optional>

#include "sluice/base/bytes.hpp"
#include "sluice/plan/plan_text.hpp"
#include "step/home_bytes.hpp"

namespace sluice::plan {

namespace {

// `poorest`: a name of PoorestRanks.
std::string who_has(const std::string& poorest) {
  return poorest.empty() ? "this process" : poorest;
}

}  // namespace

void choose_pinning(Plan& plan, const MachineFacts& machine, std::vector<std::string>& problems) {
  // "pin_memory" of the configuration. Without it, host buffers are pinned for a GPU.
  std::optional<bool> asked;
  for (const config::OffloadConfig* offload :
       {&plan.config.zero.offload_optimizer, &plan.config.zero.offload_param}) {
    if (offload->device != config::OffloadConfig::Device::none && offload->pin_memory)
      asked = asked.value_or(false) || *offload->pin_memory;
  }
  plan.planned.pinned_staging =
      asked.value_or(plan.device.gpu.has_value()) && plan.planned.tiers.host > 0;
  if (!plan.planned.pinned_staging) {
    plan.choices.push_back(
        plan.device.gpu
            ? "host buffers are pageable (\"pin_memory\": false): copies to and from the GPU "
              "are slower, and the CPU takes part in them"
            : "host buffers are pageable: copies of the host device gain nothing from pinned "
              "memory (\"pin_memory\": true pins them)");
    return;
  }
  // No device copies from or to the copies of states.
  plan.planned.pinned_bytes = plan.planned.tiers.host - checkpoint_copies_bytes(plan);
  // A GPU's driver pins the memory that is registered with it, beside RLIMIT_MEMLOCK.
  if (!plan.device.gpu && plan.planned.pinned_bytes > machine.memlock_bytes) {
    problems.push_back("\"pin_memory\": true asks for " + format_bytes(plan.planned.pinned_bytes) +
                       " of locked memory, but RLIMIT_MEMLOCK is " +
                       format_bytes(machine.memlock_bytes) + " and " +
                       who_has(machine.poorest.memlock) +
                       " lacks CAP_IPC_LOCK: raise the limit (ulimit -l, "
                       "LimitMEMLOCK= of the service, --ulimit memlock=-1 of the container), or "
                       "set \"pin_memory\": false");
  }
}

namespace {

// Bytes of the machine's memory that the plan takes. Excludes a GPU's memory.
std::uint64_t host_need(const Plan& plan) {
  return checked_add(plan.device.gpu ? 0 : plan.planned.tiers.device, plan.planned.tiers.host);
}

void check_gpu(const Plan& plan, const MachineFacts& machine, std::vector<std::string>& problems) {
  if (!plan.device.gpu || plan.planned.tiers.device <= plan.device.gpu->free_bytes) return;
  const std::string& poorest = machine.poorest.gpu;
  problems.push_back("the device tier needs " + format_bytes(plan.planned.tiers.device) +
                     ", and of the " + format_bytes(plan.device.gpu->total_bytes) + " of " +
                     (poorest.empty() ? compute_name(plan) : "the GPU of " + poorest) + " " +
                     format_bytes(plan.device.gpu->free_bytes) +
                     " are free: lower \"sluice\": {\"device_bytes\"}, or end what else uses the "
                     "GPU (nvidia-smi shows it)");
}

// Refuses a budget in bytes that no run of this process could use.
void check_budgets(const Plan& plan, const MachineFacts& machine,
                   std::vector<std::string>& problems) {
  if (!machine.group_memory || plan.placement != Placement::configured) return;
  const GroupMemory& group = *machine.group_memory;
  const auto check = [&](const char* key, const config::ByteBudget& budget) {
    if (budget.kind != config::ByteBudget::Kind::bytes || budget.value <= group.limit_bytes) return;
    problems.push_back("\"sluice\": {\"" + std::string(key) + "\"} is " +
                       format_bytes(budget.value) +
                       ", but the control group of this process allows " +
                       format_bytes(group.limit_bytes) + " of memory (" + group.limit_file +
                       "): lower the budget, or raise the limit (--memory of the container, "
                       "MemoryMax= of the service)");
  };
  if (!plan.device.gpu) check("device_bytes", plan.config.sluice.device_bytes);
  check("host_bytes", plan.config.sluice.host_bytes);
}

// Where the free memory ends when a control group is the reason; else empty.
std::string group_text(const MachineFacts& machine) {
  if (!machine.group_memory ||
      machine.group_memory->available_bytes > machine.available_memory_bytes)
    return "";
  return " (its control group allows " + format_bytes(machine.group_memory->limit_bytes) + ": " +
         machine.group_memory->limit_file + ")";
}

}  // namespace

void check_machine(const Plan& plan, const MachineFacts& machine,
                   std::vector<std::string>& problems) {
  check_gpu(plan, machine, problems);
  check_budgets(plan, machine, problems);
  const std::string tiers = plan.device.gpu ? "host tier" : "device tier, host tier";
  const std::uint64_t need = checked_add(host_need(plan), plan.planned.runtime_bytes);
  if (need > machine.available_memory_bytes) {
    problems.push_back(who_has(machine.poorest.memory) + " has " +
                       format_bytes(machine.available_memory_bytes) + " of free memory" +
                       group_text(machine) + "; " + tiers + " and the program itself need " +
                       format_bytes(need));
  }
  const std::uint64_t mapped = checked_add(host_need(plan), kProgramAddressSpaceBytes);
  if (mapped > machine.address_space_bytes) {
    problems.push_back(who_has(machine.poorest.address_space) + " may map " +
                       format_bytes(machine.address_space_bytes) +
                       " of address space (ulimit -v); " + tiers +
                       " and the program's libraries need " + format_bytes(mapped));
  }
  for (const DiskNeed& disk : plan.directories.disks) {
    if (disk.is_short()) {
      problems.push_back(
          disk.name + " needs " + format_bytes(disk.needed_bytes) + " of disk, and " +
          format_bytes(*disk.free_bytes) +
          " are available (free, or in files there that the run replaces)" +
          (disk.shares_file_system ? " beside what the other directories need" : ""));
    }
  }
}

}  // namespace sluice::plan
