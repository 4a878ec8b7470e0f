# Run by the build (cmake -P): writes OUTPUT, a source whose own_train_stamp() names the contents of HEADERS.
set(contents "")
foreach(header IN LISTS HEADERS)
  file(SHA256 "${header}" content)
  string(APPEND contents "${content}")
endforeach()
string(SHA256 stamp "${contents}")
string(SUBSTRING "${stamp}" 0 16 stamp)
file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT [[
#include "sluice/train/library.hpp"

namespace sluice::train {

const char* own_train_stamp() {
  return "@stamp@";
}

}  // namespace sluice::train
]])
