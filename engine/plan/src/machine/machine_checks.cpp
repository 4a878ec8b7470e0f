#include "machine/machine_checks.hpp"

#include <optional>

#include "sluice/base/bytes.hpp"
#include "sluice/plan/plan_text.hpp"

namespace sluice::plan {

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
  plan.planned.pinned_bytes = plan.planned.tiers.host;
  if (plan.planned.pinned_bytes > machine.memlock_bytes) {
    problems.push_back(
        std::string(asked ? "\"pin_memory\": true asks for " : "copies of a GPU need ") +
        format_bytes(plan.planned.pinned_bytes) + " of locked memory, but RLIMIT_MEMLOCK is " +
        format_bytes(machine.memlock_bytes) +
        ": raise it (ulimit -l, or LimitMEMLOCK= of the service), or set \"pin_memory\": false");
  }
}

namespace {

// Bytes of the machine's memory that the plan takes. Excludes a GPU's memory.
std::uint64_t host_need(const Plan& plan) {
  return checked_add(plan.device.gpu ? 0 : plan.planned.tiers.device, plan.planned.tiers.host);
}

void check_gpu(const Plan& plan, std::vector<std::string>& problems) {
  if (!plan.device.gpu || plan.planned.tiers.device <= plan.device.gpu->free_bytes) return;
  problems.push_back("the device tier needs " + format_bytes(plan.planned.tiers.device) +
                     ", and of the " + format_bytes(plan.device.gpu->total_bytes) + " of " +
                     compute_name(plan) + " " + format_bytes(plan.device.gpu->free_bytes) +
                     " are free: lower \"sluice\": {\"device_bytes\"}, or end what else uses the "
                     "GPU (nvidia-smi shows it)");
}

}  // namespace

void check_machine(const Plan& plan, const MachineFacts& machine,
                   std::vector<std::string>& problems) {
  check_gpu(plan, problems);
  const std::string tiers = plan.device.gpu ? "host tier" : "device tier, host tier";
  const std::uint64_t need = checked_add(host_need(plan), plan.planned.runtime_bytes);
  if (need > machine.available_memory_bytes) {
    problems.push_back("the machine has " + format_bytes(machine.available_memory_bytes) +
                       " of free memory; " + tiers + " and the program itself need " +
                       format_bytes(need));
  }
  const std::uint64_t mapped = checked_add(host_need(plan), kProgramAddressSpaceBytes);
  if (mapped > machine.address_space_bytes) {
    problems.push_back("this process may map " + format_bytes(machine.address_space_bytes) +
                       " of address space (ulimit -v); " + tiers +
                       " and the program's libraries need " + format_bytes(mapped));
  }
  for (const DiskNeed& disk : plan.directories.disks) {
    if (disk.is_short()) {
      problems.push_back(
          disk.directory + " needs " + format_bytes(disk.needed_bytes) +
          " of disk, its file system has " + format_bytes(*disk.free_bytes) + " free" +
          (disk.shares_file_system ? " beside what the other directories need" : ""));
    }
  }
}

}  // namespace sluice::plan
