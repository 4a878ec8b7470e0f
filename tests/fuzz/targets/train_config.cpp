// The training configuration: as the first file, also with flags over it, and as the file of
// `sluice nvme tune` after it.
#include "sluice/config/train_config.hpp"

#include "target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size_bytes) {
  using namespace sluice;
  const std::string_view text = fuzz::text_of(data, size_bytes);
  fuzz::read_or_refuse([&] { config::parse_train_config(text, "ds.json"); });
  fuzz::read_or_refuse([&] {
    config::parse_train_config(text, "ds.json",
                               {.settings = {{"train_micro_batch_size_per_gpu", "2", "--a"},
                                             {"optimizer.params.betas.1", "0.5", "--b"},
                                             {"bf16.enabled", "true", "--c"},
                                             {"zero_optimization.stage", "\"3\"", "--d"},
                                             {"optimizer.params.lr", "1", "--e", true}}});
  });
  const std::string path = fuzz::write_input("tuned.json", text);
  fuzz::read_or_refuse([&] {
    config::parse_train_config(R"({"train_batch_size": 8, "optimizer": {"type": "Adam"}})",
                               "ds.json", {.world_size = 1, .tuned_paths = {path}});
  });
  return 0;
}
