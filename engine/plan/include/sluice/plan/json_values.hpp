#pragma once
// Parts of a plan as JSON values. Not installed: it is for components that link JsonCpp.
// Thread-safe: free functions without state.

#include <json/value.h>

namespace sluice::plan {

struct Prediction;
struct TierBytes;

Json::Value to_value(const TierBytes& bytes);
Json::Value to_value(const Prediction& prediction);

}  // namespace sluice::plan
