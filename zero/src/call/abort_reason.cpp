#include "sluice/zero/abort_reason.hpp"

namespace sluice::zero {

AbortReason::AbortReason(const std::exception_ptr& error)
    : text(failure_text(error)), kind(failure_kind(error)) {
  try {
    std::rethrow_exception(error);
  } catch (const RankFailure&) {
    by_another = true;
  } catch (...) {
  }
}

void AbortReason::raise(const std::string& before) const {
  if (by_another) throw RankFailure(kind, before + text);
  throw Error(before + text);
}

}  // namespace sluice::zero
