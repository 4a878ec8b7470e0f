// Writes a list of tensors to a swap file and reads them back, all in flight together.
//   swap_tensor [FILE]      (default: tensors.swap in the current folder; removed at the end)

#include <cstdio>
#include <exception>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "sluice/base/bytes.hpp"
#include "sluice/nvme/io_engine.hpp"

int main(int argc, char** argv) {
  namespace nvme = sluice::nvme;
  try {
    const std::string path = argc > 1 ? argv[1] : "tensors.swap";
    // Three tensors; size, address and offset in the file may be arbitrary.
    std::vector<std::vector<float>> tensors{std::vector<float>(1'000'000), std::vector<float>(333),
                                            std::vector<float>(5'000'001)};
    for (auto& tensor : tensors) std::iota(tensor.begin(), tensor.end(), 0.5F);

    auto [backend, why_not_better] = nvme::make_backend(nvme::BackendKind::automatic, 32, 4);
    std::printf("backend %s %s\n", backend->name().data(), why_not_better.c_str());
    nvme::SwapFile file(path, nvme::OpenMode::create, nvme::DirectIo::automatic);
    nvme::IoEngine engine(std::move(backend), {});

    // Tensors begin at multiples of the alignment, so that no two writes share a block.
    std::vector<std::uint64_t> offsets;
    std::uint64_t end = 0;
    for (const auto& tensor : tensors) {
      offsets.push_back(end);
      end = sluice::align_up(end + tensor.size() * sizeof(float), file.offset_alignment());
    }
    file.allocate(end);

    std::vector<sluice::Ticket> tickets;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto bytes = std::as_bytes(std::span(tensors[i]));
      tickets.push_back(engine.begin_write(file, offsets[i], bytes));
    }
    sluice::finish_all(tickets);
    std::vector<std::vector<float>> back(tensors.size());
    for (std::size_t i = 0; i < back.size(); ++i) {
      back[i].resize(tensors[i].size());
      const auto bytes = std::as_writable_bytes(std::span(back[i]));
      tickets.push_back(engine.begin_read(file, offsets[i], bytes));
    }
    sluice::finish_all(tickets);
    const std::string moved = sluice::format_bytes(engine.counters().read_bytes);
    const bool same = back == tensors;
    std::printf("%s written and read back, %s\n", moved.c_str(), same ? "the same" : "DIFFERENT");
    std::remove(path.c_str());
    return same ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "swap_tensor: %s\n", error.what());
    return 1;
  }
}
