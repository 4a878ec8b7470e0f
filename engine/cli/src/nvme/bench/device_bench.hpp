#pragma once
// nvme bench --memory cuda: the ways between a drive and a GPU's memory, beside the two links
// alone. Confined to thread: main.

#include "command/arguments.hpp"
#include "command/session.hpp"

namespace sluice::cli {

// Throws InvalidArgument where there is no such GPU, and for arguments that have no meaning here.
int run_device_bench(const NvmeBenchArguments& arguments, Session& session);

}  // namespace sluice::cli
