// doctor: accelerators, asynchronous I/O, and the libraries of this build.

#include <json/version.h>
#include <spdlog/version.h>
#include <CLI/Version.hpp>

#include <string>

#include "command/version.hpp"
#include "doctor/doctor.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/nvme/io_backend.hpp"
#include "sluice/offload/cuda_device.hpp"
#include "train/train_library_loader.hpp"

namespace sluice::cli {

namespace {

DoctorRow on_off(std::string name, bool on, std::string detail) {
  return {std::move(name), on ? DoctorState::on : DoctorState::off, std::move(detail), {}};
}

DoctorRow gpu_row() {
  const offload::CudaDevices found = offload::find_cuda_devices();
  if (found.devices.empty())
    return on_off(
        "GPU", false,
        found.why_none + (found.fails ? "; \"sluice\": {\"device\": \"host\"} computes on the host"
                                      : "; the model computes on the host"));
  std::string names;
  for (const offload::CudaDeviceFacts& device : found.devices) {
    names += (names.empty() ? "" : ", ") + device.name + " (" + format_bytes(device.total_bytes) +
             ", " + device.bus_id + ")";
  }
  return on_off("GPU", true,
                names + "; the first one is used, or the one that \"sluice\": {\"device\"} names");
}

DoctorRow uring_row() {
  std::string why;
  const bool available = nvme::io_uring_available(why);
  return on_off("io_uring", available,
                available ? "the swap files use it" : why + "; libaio or threads do the I/O");
}

DoctorRow libaio_row() {
  std::string why;
  const bool available = nvme::libaio_available(why);
  return on_off("libaio", available,
                available ? "I/O where io_uring cannot be had"
                          : why + "; threads do the I/O where io_uring cannot be had");
}

constexpr const char* kCannotBeTold = "it cannot be told whether its library is there: ";

DoctorRow train_library_row() {
  std::string why;
  const std::string path = find_train_library(why);
  if (path.empty()) {
    return on_off("LibTorch", false,
                  why.starts_with("/proc") ? kCannotBeTold + why
                                           : "train and generate need it: " + why +
                                                 "; scripts/setup.sh, then scripts/build.sh");
  }
  return on_off("LibTorch", true, std::string(SLUICE_LIBTORCH_VERSION) + ", through " + path);
}

// The file is loaded when ranks join, so a build of some targets may lack it.
DoctorRow mpi_row() {
  const std::string version = SLUICE_MPI_VERSION;
  if (version.empty()) {
    return on_off("MPI", false,
                  "built without it (packages libopenmpi-dev, openmpi-bin): no ranks on CPUs");
  }
  std::string why;
  const std::string path = find_library("libsluice_mpi.so", why);
  if (path.empty()) {
    return on_off("MPI", false,
                  why.starts_with("/proc") ? kCannotBeTold + why
                                           : "ranks on CPUs need it: " + why +
                                                 "; build the target sluice_mpi, or everything");
  }
  return on_off("MPI", true, version + ", through " + path);
}

// `version` is empty when the build lacks the library.
DoctorRow library_row(const std::string& name, const std::string& version,
                      const std::string& without) {
  return on_off(name, !version.empty(), version.empty() ? without : version);
}

}  // namespace

std::vector<DoctorRow> probe_devices() {
  return {gpu_row(), uring_row(), libaio_row(),
          on_off("threads", true, "I/O where neither io_uring nor libaio can be had")};
}

std::vector<DoctorRow> probe_libraries() {
  const std::string spdlog_version = std::to_string(SPDLOG_VER_MAJOR) + "." +
                                     std::to_string(SPDLOG_VER_MINOR) + "." +
                                     std::to_string(SPDLOG_VER_PATCH);
  return {
      {"sluice",
       DoctorState::fact,
       std::string(SLUICE_VERSION) + ", " + SLUICE_COMPILER + ", " + SLUICE_BUILD_TYPE,
       {}},
      train_library_row(),
      library_row("oneTBB", SLUICE_TBB_VERSION,
                  "built without it (package libtbb-dev): plain threads"),
      library_row("liburing", SLUICE_LIBURING_VERSION,
                  "built without it (package liburing-dev): no io_uring"),
      library_row("libaio", SLUICE_LIBAIO_VERSION,
                  "built without it (package libaio-dev): no libaio"),
      library_row("hwloc", SLUICE_HWLOC_VERSION,
                  "built without it (package libhwloc-dev): doctor shows less"),
      mpi_row(),
      library_row("GPU kernels", SLUICE_NVCC_VERSION,
                  "built without nvcc 13: \"ratio\" and \"gpu_updates\" have no effect on a GPU"),
      library_row("Highway", SLUICE_HWY_VERSION, ""),
      library_row("xxHash", SLUICE_XXHASH_VERSION, ""),
      library_row("JsonCpp", JSONCPP_VERSION_STRING, ""),
      library_row("CLI11", CLI11_VERSION, ""),
      library_row("spdlog", spdlog_version, ""),
  };
}

}  // namespace sluice::cli
