#include "ranks/rank_numbers.hpp"

#include <sstream>
#include <string>

#include "sluice/base/text.hpp"

namespace sluice::train {

RankNumbers gather_numbers(RankGroup& ranks, const RankNumbers& own) {
  if (ranks.size() == 1) return {};
  std::string text;
  for (const double number : own.by_rank.front()) text += format_number("%.17g ", number);
  RankNumbers all{own.names, {}};
  for (const std::string& rank : ranks.exchange(text, "the numbers of the report")) {
    std::istringstream fields(rank);
    std::vector<double>& row = all.by_rank.emplace_back();
    for (double number = 0; fields >> number;) row.push_back(number);
  }
  return all;
}

}  // namespace sluice::train
