#pragma once
// Calls of ranks on memory of a device.

#include <memory>

#include "rank_numbers.hpp"
#include "sluice/base/worker.hpp"
#include "sluice/offload/device.hpp"

namespace sluice::zero::test {

// Begins a call on copies of `input` and `output` in the memory of `device`. The ticket ends when
// what the call wrote is back in `output`; `worker` waits for it. All arguments outlive the ticket.
inline Ticket begin_on_device(Communicator& comm, offload::Device& device, Worker& worker,
                              const RankCall& call, const Bytes& input, Bytes& output) {
  struct Memory {
    offload::Buffer input;
    offload::Buffer output;
  };
  const auto memory = std::make_shared<Memory>();
  const auto place = [&](const Bytes& bytes, offload::Buffer& buffer) {
    if (bytes.empty()) return offload::DeviceSpan();
    buffer = device.memory().allocate(bytes.size(), "a call");
    device.begin_copy_in(buffer.device_span(), bytes).finish();
    return buffer.device_span().first(bytes.size());
  };
  const offload::DeviceSpan from = place(input, memory->input);
  const offload::DeviceSpan to = place(output, memory->output);
  const auto done =
      std::make_shared<Ticket>(comm.begin(DeviceCall{call, from, to, device.mark_compute()}));
  return worker.begin([done, memory, &device, to, &output] {
    done->finish();
    device.begin_copy_out(output, to).finish();
  });
}

}  // namespace sluice::zero::test
