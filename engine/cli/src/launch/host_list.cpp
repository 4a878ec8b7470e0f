#include "launch/host_list.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"

namespace sluice::cli {

namespace {

constexpr int kMostSlots = 65536;

std::optional<int> to_number(const std::string& text) {
  const std::optional<int> value = parse_number<int>(text);
  return value && *value >= 0 && *value <= kMostSlots ? value : std::nullopt;
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = text.find(at, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) return parts;
    begin = end + 1;
  }
}

bool is_blank(const std::string& line) {
  return line.find_first_not_of(" \t\r") == std::string::npos;
}

// A host's name as names are compared: ssh and DNS know no case.
std::string compared(const std::string& name) {
  return lower(address_of(name));
}

std::vector<Host>::iterator find_host(std::vector<Host>& hosts, const std::string& name) {
  return std::find_if(hosts.begin(), hosts.end(),
                      [&](const Host& host) { return compared(host.name) == compared(name); });
}

bool is_gpu(const std::string& name) {
  if (name.starts_with("GPU-") || name.starts_with("MIG-")) return true;
  return !name.empty() &&
         std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// One host of a filter. No slots: all of the host.
struct Named {
  std::string host;
  std::vector<int> slots;
};

// Slots of "0,2", each of which the host has.
std::vector<int> parse_slots(const std::string& flag, const std::string& text, const Host& host) {
  std::vector<int> slots;
  for (const std::string& part : split(text, ',')) {
    const std::optional<int> slot = to_number(part);
    SLUICE_CHECK(slot, flag + ": \"" + part + "\" is no number of a slot (HOST:0,2)");
    SLUICE_CHECK(std::find(host.slots.begin(), host.slots.end(), *slot) != host.slots.end(),
                 flag + ": " + host.name + " has no slot " + part + "; its slots are " +
                     join(host.slots, ","));
    SLUICE_CHECK(std::find(slots.begin(), slots.end(), *slot) == slots.end(),
                 flag + ": slot " + part + " of " + host.name + " is there twice");
    slots.push_back(*slot);
  }
  return slots;
}

std::vector<Named> parse_filter(const std::string& flag, const std::string& text,
                                std::vector<Host>& hosts) {
  std::vector<Named> all;
  for (const std::string& part : split(text, '@')) {
    // An IPv6 address has colons too.
    const bool is_name = find_host(hosts, part) != hosts.end();
    const std::size_t colon = is_name ? std::string::npos : part.rfind(':');
    Named named{part.substr(0, colon), {}};
    const auto host = find_host(hosts, named.host);
    SLUICE_CHECK(host != hosts.end(), flag + ": \"" + named.host + "\" is none of the hosts");
    named.host = host->name;
    SLUICE_CHECK(
        std::none_of(all.begin(), all.end(), [&](const Named& n) { return n.host == named.host; }),
        flag + ": " + named.host + " is there twice");
    if (colon != std::string::npos) named.slots = parse_slots(flag, part.substr(colon + 1), *host);
    all.push_back(std::move(named));
  }
  return all;
}

void keep_slots(Host& host, const std::vector<int>& named, bool keep_named) {
  std::erase_if(host.slots, [&](int slot) {
    const bool is_named = std::find(named.begin(), named.end(), slot) != named.end();
    return is_named != keep_named;
  });
  host.is_filtered = true;
}

}  // namespace

std::string address_of(const std::string& name) {
  return name.substr(name.rfind('@') + 1);  // npos + 1 is 0
}

std::vector<std::string> visible_gpus(const std::string& variable) {
  std::vector<std::string> names;
  for (std::string& name : split(variable, ',')) {
    const std::size_t begin = name.find_first_not_of(' ');
    const std::size_t end = name.find_last_not_of(' ');
    if (begin == std::string::npos || !is_gpu(name.substr(begin, end - begin + 1))) break;
    names.push_back(name.substr(begin, end - begin + 1));
  }
  return names;
}

std::vector<Host> parse_hostfile(const std::string& text, const std::string& path) {
  std::vector<Host> hosts;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // editors on Windows put it first
  std::istringstream lines(
      text.substr(text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0));
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    line = line.substr(0, line.find('#'));
    if (is_blank(line)) continue;
    const std::string place = path + ":" + std::to_string(number) + ": ";
    std::istringstream words(line);
    std::string name;
    std::string slots;
    std::string more;
    words >> name >> slots >> more;
    const std::optional<int> count =
        slots.rfind("slots=", 0) == 0 && more.empty() ? to_number(slots.substr(6)) : std::nullopt;
    SLUICE_CHECK(count && *count > 0, place + "expected \"NAME slots=N\", found \"" + line + "\"");
    SLUICE_CHECK(!name.starts_with('-'), place + "a host's name does not begin with -: " + name);
    SLUICE_CHECK(find_host(hosts, name) == hosts.end(), place + name + " is there twice");
    Host host{name, std::vector<int>(static_cast<std::size_t>(*count))};
    std::iota(host.slots.begin(), host.slots.end(), 0);
    hosts.push_back(std::move(host));
  }
  SLUICE_CHECK(!hosts.empty(), path + ": has no hosts; a line is \"NAME slots=N\"");
  return hosts;
}

std::vector<Host> filter_hosts(std::vector<Host> hosts, const std::string& include,
                               const std::string& exclude) {
  if (include.empty() && exclude.empty()) return hosts;
  const bool keep = !include.empty();
  const std::string flag = keep ? "--include" : "--exclude";
  const std::vector<Named> named = parse_filter(flag, keep ? include : exclude, hosts);
  std::vector<Host> left;
  for (Host& host : hosts) {
    const auto found = std::find_if(named.begin(), named.end(),
                                    [&](const Named& n) { return n.host == host.name; });
    const bool is_whole = found == named.end() || found->slots.empty();
    if (is_whole && (found != named.end()) != keep) continue;
    if (!is_whole) keep_slots(host, found->slots, keep);
    if (!host.slots.empty()) left.push_back(std::move(host));
  }
  SLUICE_CHECK(!left.empty(), flag + ": no host is left");
  return left;
}

std::vector<Host> first_of(std::vector<Host> hosts, unsigned nodes, unsigned slots) {
  SLUICE_CHECK(nodes <= hosts.size(), "--num-nodes: " + std::to_string(nodes) +
                                          " hosts are wanted, and there are " +
                                          std::to_string(hosts.size()));
  if (nodes > 0) hosts.resize(nodes);
  for (Host& host : hosts) {
    SLUICE_CHECK(slots <= host.slots.size(),
                 "--num-gpus: " + std::to_string(slots) + " ranks are wanted on " + host.name +
                     ", which has " + counted(host.slots.size(), "slot"));
    if (slots > 0) host.slots.resize(slots);
  }
  return hosts;
}

int count_ranks(const std::vector<Host>& hosts) {
  std::size_t ranks = 0;
  for (const Host& host : hosts) ranks += host.slots.size();
  return static_cast<int>(ranks);
}

}  // namespace sluice::cli
