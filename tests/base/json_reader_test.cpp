#include "sluice/base/json/json_reader.hpp"

#include <gtest/gtest.h>

#include <string>

namespace sluice {
namespace {

TEST(JsonReader, StrictTextsHaveNoCommentAndNoKeyTwice) {
  EXPECT_EQ((*parse_json(R"({"a": [1, 2]})"))["a"][1].asInt(), 2);
  for (const char* text : {"", "{", "{} {}", "// ours\n{}", R"({"a": 1, "a": 2})"}) {
    std::string why;
    EXPECT_FALSE(parse_json(text, &why).has_value()) << text;
    EXPECT_NE(why, "") << text;
    EXPECT_FALSE(parse_json(text).has_value()) << text;
  }
}

TEST(JsonReader, LenientOnesMayHaveThem) {
  const JsonReader reader(lenient_json());
  for (const char* text : {"// ours\n{\"a\": 2}", R"({"a": 1, "a": 2})", "{\"a\": 2}\nnotes"})
    EXPECT_EQ((*reader.read(text))["a"].asInt(), 2) << text;
  std::string why;
  EXPECT_FALSE(reader.read("{\"a\": 2", &why).has_value());
  EXPECT_NE(why.find("Line 1, Column 8"), std::string::npos) << why;
}

TEST(JsonReader, ATextThatIsNestedTooDeeplyIsNoneAndTheReaderGoesOn) {
  for (const Json::CharReaderBuilder& builder : {strict_json(), lenient_json()}) {
    const JsonReader reader(builder);
    std::string why;
    EXPECT_FALSE(reader.read(std::string(100'000, '['), &why).has_value());
    EXPECT_EQ(why, "it is nested too deeply");
    EXPECT_FALSE(reader.read(std::string(100'000, '[')).has_value());
    EXPECT_EQ((*reader.read("[3]"))[0].asInt(), 3);
  }
}

}  // namespace
}  // namespace sluice
