// config.json of a model.
#include "sluice/config/model_config.hpp"

#include "target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size_bytes) {
  using namespace sluice;
  fuzz::read_or_refuse([&] {
    const config::ModelConfig model =
        config::parse_model_config(fuzz::text_of(data, size_bytes), "config.json");
    config::canonical_model_text(model);
  });
  return 0;
}
