// stripe.json, the label of a directory of a striped store.
#include <string>
#include <vector>

#include "swap/stripe.hpp"
#include "target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size_bytes) {
  using namespace sluice;
  fuzz::write_input("stripe.json", fuzz::text_of(data, size_bytes));
  const std::string& directory = fuzz::folder().path();
  fuzz::read_or_refuse([&] { offload::check_is_no_further_part(directory); });
  fuzz::read_or_refuse([&] { offload::check_is_nobodys_part(directory, "/elsewhere"); });
  fuzz::read_or_refuse([&] {
    offload::follow_moved_parts({{directory, directory + "/further"}, {}});
  });
  fuzz::read_or_refuse([&] {
    std::vector<std::string> missing;
    offload::directories_to_clear(directory, missing);
  });
  fuzz::read_or_refuse([&] {
    offload::Manifest manifest;
    manifest.store_id = "0123456789abcdef";
    offload::stripe_to_read(directory, manifest);
  });
  return 0;
}
