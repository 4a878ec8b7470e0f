#pragma once
// Peers: whether the other ranks answer, and what each is doing. Every rank sends every other one a
// beat each second, from a thread of its own, so a rank that computes for minutes still answers,
// and one that was stopped or has died does not. Not installed.
//
// Thread-safe.

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "exchange/transport.hpp"
#include "sluice/base/mutex.hpp"

namespace sluice::zero {

class Peers {
 public:
  // Takes a transport of its own. `silence_limit`: a rank whose last beat is older does not answer;
  // 0: every rank always answers.
  Peers(std::unique_ptr<Transport> transport, std::chrono::duration<double> silence_limit);
  // Blocks until the other ranks have ended too, or do not answer.
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // This rank's work, for the others: "in all_gather of unit h.3, 4096 bytes".
  void set_doing(const std::string& what);
  // No more beats: the ranks do not end in order.
  void stop() { stopped_ = true; }
  // Which ranks do not answer, and what every rank was doing; empty when all answer.
  std::string trouble() const;

 private:
  struct Beat {
    std::uint64_t count = 0;
    std::int32_t has_ended = 0;
    std::int32_t process = 0;
    std::array<char, 56> host{};
    std::array<char, 184> doing{};
  };
  struct Peer {
    Beat last;
    Beat incoming;
    std::chrono::steady_clock::time_point seen_at;
    std::unique_ptr<Message> receiving;
    Beat outgoing;
    std::unique_ptr<Message> sending;
    bool told_end = false;  // `sending` says that this rank has ended
  };
  void run();
  void beat() SLUICE_REQUIRES(mutex_);
  void look() SLUICE_REQUIRES(mutex_);
  bool all_ended() const SLUICE_REQUIRES(mutex_);
  bool all_told() SLUICE_REQUIRES(mutex_);
  bool is_silent(const Peer& peer) const SLUICE_REQUIRES(mutex_);
  bool has_silent() const SLUICE_REQUIRES(mutex_);
  std::string line(int rank) const SLUICE_REQUIRES(mutex_);

  const std::unique_ptr<Transport> transport_;  // of the thread, once it runs
  const int rank_;
  const int world_size_;
  const std::chrono::duration<double> silence_limit_;
  const std::chrono::duration<double> interval_;
  std::atomic<bool> ending_{false};
  std::atomic<bool> stopped_{false};
  mutable Mutex mutex_;
  std::vector<Peer> peers_ SLUICE_GUARDED_BY(mutex_);  // by rank
  Beat own_ SLUICE_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point beat_at_ SLUICE_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point looked_at_ SLUICE_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it starts when all it uses is there
};

}  // namespace sluice::zero
