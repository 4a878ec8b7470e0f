#pragma once
// The spans of a trace file, read with a JSON parser. A file that is no trace fails the test.
// Thread-safe: free functions without state.

#include <gtest/gtest.h>
#include <json/json.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace sluice::test {

struct TraceEvent {
  std::string row;
  std::string lane;
  std::string name;
  double begin_us = 0;
  double end_us = 0;
  int sort_index = 0;
  std::map<std::string, std::int64_t> args;
};

inline std::vector<TraceEvent> read_trace(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Json::Value root;
  std::string errors;
  EXPECT_TRUE(Json::parseFromStream(Json::CharReaderBuilder(), file, &root, &errors))
      << path << ": " << errors;
  std::map<int, std::string> names;
  std::map<int, int> sort_indices;
  std::vector<TraceEvent> events;
  for (const Json::Value& event : root) {
    const int lane = event["tid"].asInt();
    if (event["ph"] == "M") {
      if (event["name"] == "thread_name") names[lane] = event["args"]["name"].asString();
      if (event["name"] == "thread_sort_index")
        sort_indices[lane] = event["args"]["sort_index"].asInt();
      continue;
    }
    EXPECT_EQ(event["ph"].asString(), "X");
    EXPECT_EQ(names.count(lane), 1U) << "a row without a name";
    TraceEvent& read = events.emplace_back();
    read.row = event["cat"].asString();
    read.lane = names[lane];
    read.name = event["name"].asString();
    read.begin_us = event["ts"].asDouble();
    read.end_us = read.begin_us + event["dur"].asDouble();
    read.sort_index = sort_indices[lane];
    for (const std::string& key : event["args"].getMemberNames())
      read.args[key] = event["args"][key].asInt64();
  }
  return events;
}

// The names of two overlapping spans of one lane; empty when there are none.
inline std::string first_overlap(std::vector<TraceEvent> events) {
  std::sort(events.begin(), events.end(), [](const TraceEvent& a, const TraceEvent& b) {
    return std::pair(a.lane, a.begin_us) < std::pair(b.lane, b.begin_us);
  });
  for (std::size_t i = 1; i < events.size(); ++i) {
    // Numbers with three digits after the point, of up to 1e12 of them.
    const bool apart = events[i].begin_us >= events[i - 1].end_us - 1e-3;
    if (events[i].lane == events[i - 1].lane && !apart)
      return events[i].lane + ": " + events[i - 1].name + ", " + events[i].name;
  }
  return "";
}

}  // namespace sluice::test
