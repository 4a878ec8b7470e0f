// manifest.json of a swap directory or a checkpoint, and the run's description in it. A damaged
// text is refused by its checksum; so each input is also given the checksum that fits.
#include <cstdio>
#include <memory>
#include <string>

#include "sluice/models/run_state.hpp"
#include "sluice/nvme/io_backend.hpp"
#include "sluice/offload/swap_store.hpp"
#include "swap/manifest.hpp"
#include "target.hpp"

namespace sluice::fuzz {
namespace {

std::string with_checksum(std::string_view text) {
  std::string body(text.substr(0, text.rfind("xxh3-64:")));
  if (!body.ends_with('\n')) body += '\n';
  char trailer[32];
  std::snprintf(trailer, sizeof(trailer), "xxh3-64:%016llx\n",
                static_cast<unsigned long long>(
                    offload::checksum_of(std::as_bytes(std::span(body.data(), body.size())))));
  return body + trailer;
}

nvme::IoEngine& io_engine() {
  static nvme::IoEngine engine(nvme::make_backend(nvme::BackendKind::threads, 4, 1).backend,
                               nvme::IoEngineOptions{1U << 20U, 4});
  return engine;
}

void read_manifest(std::string_view text) {
  read_or_refuse([&] {
    const offload::Manifest manifest = offload::parse_manifest(text, "manifest.json");
    models::parse_run_state(manifest.metadata, "manifest.json");
  });
  write_input("manifest.json", text);
  read_or_refuse([&] { offload::SwapStore::read_committed(folder().path()); });
  read_or_refuse([&] { offload::SwapStore::open_read_only(folder().path(), io_engine()); });
}

}  // namespace
}  // namespace sluice::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size_bytes) {
  using namespace sluice::fuzz;
  static const std::string slot = write_input("states.0.swap", std::string(64U << 10U, 's'));
  read_manifest(text_of(data, size_bytes));
  read_manifest(with_checksum(text_of(data, size_bytes)));
  return 0;
}
