#pragma once
// Pieces of a JSON Schema, and its rules between keys. Thread-safe: free functions without state.

#include <json/value.h>

#include <string>
#include <vector>

namespace sluice::config {

// A schema from its text, which is JSON.
Json::Value text_schema(const char* text);
Json::Value const_schema(const Json::Value& value);
// One of the options; the option itself when there is one.
Json::Value any_of(const std::vector<Json::Value>& options);
// Where the condition holds, so does the consequence.
Json::Value rule(const Json::Value& condition, const Json::Value& consequence);
// An object whose member `name` is there and fits.
Json::Value with_member(const std::string& name, const Json::Value& member);

// The list of parameter groups. Whether the optimizer has a group's values is beyond it.
Json::Value groups_schema();

// Rules between the keys of the section `path`.
std::vector<Json::Value> rules_between(const std::string& path);
// Rules between sections.
std::vector<Json::Value> rules_of_file();

}  // namespace sluice::config
