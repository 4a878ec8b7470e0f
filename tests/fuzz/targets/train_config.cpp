// The training configuration: as the first file, and as the file of `sluice nvme tune` after it.
#include "sluice/config/train_config.hpp"

#include "target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size_bytes) {
  using namespace sluice;
  const std::string_view text = fuzz::text_of(data, size_bytes);
  fuzz::read_or_refuse([&] { config::parse_train_config(text, "ds.json"); });
  const std::string path = fuzz::write_input("tuned.json", text);
  fuzz::read_or_refuse([&] {
    config::parse_train_config(R"({"train_batch_size": 8, "optimizer": {"type": "Adam"}})",
                               "ds.json", {.world_size = 1, .tuned_paths = {path}});
  });
  return 0;
}
