#include "ranks/tcp_store.hpp"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/base/host_name.hpp"
#include "sluice/base/launch_environment.hpp"

namespace sluice::train {

namespace {

constexpr std::chrono::seconds kConnectLimit{60};
constexpr std::chrono::milliseconds kLook{5};

struct Address {
  std::string host;
  std::uint16_t port = 0;  // 0: a free one
};

// LibTorch's messages go on with a stack of calls.
std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

c10::intrusive_ptr<c10d::TCPStore> connect(const Address& address, bool listens) {
  c10d::TCPStoreOptions options;
  options.port = address.port;
  options.isServer = listens;
  options.waitWorkers = false;
  options.timeout = kConnectLimit;
  try {
    return c10::make_intrusive<c10d::TCPStore>(address.host, options);
  } catch (const std::exception& error) {
    throw Error("the ranks of NCCL cannot meet at " + address.host + ":" +
                std::to_string(address.port) + ": " + first_line(error.what()));
  }
}

// A wait of TCPStore keeps all other calls out, so get() looks again and again.
class TcpStore final : public zero::RankStore {
 public:
  explicit TcpStore(c10::intrusive_ptr<c10d::TCPStore> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override {
    asked([&] {
      store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
      return 0;
    });
  }
  std::optional<std::string> get(const std::string& key,
                                 std::chrono::duration<double> limit) override {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (!asked([&] { return store_->check({key}); })) {
      if (std::chrono::steady_clock::now() >= end) return std::nullopt;
      std::this_thread::sleep_for(kLook);
    }
    const std::vector<std::uint8_t> value = asked([&] { return store_->get(key); });
    return std::string(value.begin(), value.end());
  }

 private:
  template <typename Call>
  static auto asked(const Call& call) -> decltype(call()) {
    try {
      return call();
    } catch (const std::exception& error) {
      throw Error("the store of the ranks of NCCL cannot be reached (has rank 0 ended?): " +
                  first_line(error.what()));
    }
  }

  const c10::intrusive_ptr<c10d::TCPStore> store_;
};

// Where the other ranks reach rank 0, which is this one.
std::string own_host() {
  const LaunchEnvironment launch = launch_environment();
  return launch.master_address.empty() ? host_name() : launch.master_address;
}

}  // namespace

ListeningStore listen_tcp_store() {
  const std::string host = own_host();
  auto store = connect({.host = host}, /*listens=*/true);
  const std::string address = host + " " + std::to_string(store->getPort());
  return {.store = std::make_unique<TcpStore>(std::move(store)), .address = address};
}

std::unique_ptr<zero::RankStore> connect_tcp_store(const std::string& address) {
  std::istringstream text(address);
  Address read;
  text >> read.host >> read.port;
  return std::make_unique<TcpStore>(connect(read, /*listens=*/false));
}

}  // namespace sluice::train
