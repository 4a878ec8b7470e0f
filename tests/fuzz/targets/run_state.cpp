// The description of a run, which a manifest holds as a text of its own.
#include "sluice/models/run_state.hpp"

#include "target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size_bytes) {
  using namespace sluice;
  fuzz::read_or_refuse([&] {
    const std::string text(fuzz::text_of(data, size_bytes));
    const models::RunState state = models::parse_run_state(text, "manifest.json");
    models::parse_run_state(models::to_json(state), "the text of to_json");
    models::state_shards(state.units, state.format, state.world_size);
  });
  return 0;
}
