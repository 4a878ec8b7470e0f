// The file of measured rates that `sluice plan` reads.
#include "sluice/plan/rates.hpp"

#include "target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size_bytes) {
  using namespace sluice;
  const std::string path = fuzz::write_input("rates.json", fuzz::text_of(data, size_bytes));
  fuzz::read_or_refuse([&] { plan::load_rates(path, "machine"); });
  fuzz::read_or_refuse([&] { plan::check_rates_path(path); });
  return 0;
}
