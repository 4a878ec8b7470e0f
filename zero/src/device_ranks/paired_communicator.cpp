#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/zero/device_ranks.hpp"

namespace sluice::zero {

namespace {

class PairedCommunicator final : public Communicator {
 public:
  using Communicator::begin;

  PairedCommunicator(std::unique_ptr<Communicator> host, std::unique_ptr<Communicator> device)
      : host_(std::move(host)), device_(std::move(device)) {
    SLUICE_CHECK(device_->on_device() && host_->rank() == device_->rank() &&
                     host_->world_size() == device_->world_size(),
                 "a pair of communicators has one on the device, and the same ranks");
  }

  int rank() const override { return host_->rank(); }
  int world_size() const override { return host_->world_size(); }
  bool on_device() const override { return true; }

  Ticket begin(const HostCall& call) override { return host_->begin(call); }
  Ticket begin(const DeviceCall& call) override { return device_->begin(call); }
  void perform(const HostCall& call) override { host_->perform(call); }
  void abort(const AbortReason& why) override {
    host_->abort(why);
    device_->abort(why);
  }
  CommunicatorCounters counters() const override {
    CommunicatorCounters both = host_->counters();
    const CommunicatorCounters of_device = device_->counters();
    both.calls.insert(both.calls.end(), of_device.calls.begin(), of_device.calls.end());
    both.header_bytes += of_device.header_bytes;
    return both;
  }
  void observe(CallObserver observer) override {
    host_->observe(observer);
    device_->observe(std::move(observer));
  }

 private:
  const std::unique_ptr<Communicator> host_;
  const std::unique_ptr<Communicator> device_;
};

}  // namespace

std::unique_ptr<Communicator> make_paired_communicator(std::unique_ptr<Communicator> host,
                                                       std::unique_ptr<Communicator> device) {
  SLUICE_CHECK(host != nullptr && device != nullptr, "a pair needs two communicators");
  return std::make_unique<PairedCommunicator>(std::move(host), std::move(device));
}

}  // namespace sluice::zero
