#include "ranks/rank_group.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "ranks/tcp_store.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/models/rank_commit.hpp"
#include "sluice/zero/device_ranks.hpp"

namespace sluice::train {

namespace {

// Whether another rank that throws `first` says what `own` says: the ranks make one plan of their
// least facts, and tables of it name each rank's own device.
bool is_said_by(const std::string& first, const std::exception_ptr& own) {
  try {
    std::rethrow_exception(own);
  } catch (const DoesNotFit&) {
    return decode_failure(first, 0).kind() == FailureKind::does_not_fit;
  } catch (...) {
    return encode_failure(own) == first;
  }
}

}  // namespace

RankGroup::RankGroup(zero::Ranks ranks, const RankPlace& place)
    : ranks_(std::move(ranks)), place_(place) {
  SLUICE_CHECK(ranks_.control->rank() == place.rank && ranks_.control->world_size() == place.size,
               "this process is rank " + std::to_string(place.rank) + " of " +
                   std::to_string(place.size) + " by its environment, and rank " +
                   std::to_string(ranks_.control->rank()) + " of " +
                   std::to_string(ranks_.control->world_size()) + " by its launcher");
}

std::vector<std::string> RankGroup::exchange(const std::string& mine, const std::string& label) {
  if (size() == 1) return {mine};
  return models::gather_texts(*ranks_.control, mine, label);
}

int RankGroup::largest(int mine, const std::string& label) {
  if (size() == 1) return mine;
  std::vector<double> numbers(static_cast<std::size_t>(size()), 0.0);
  numbers[static_cast<std::size_t>(rank())] = mine;
  ranks_.control->all_reduce(numbers, label);
  return static_cast<int>(*std::max_element(numbers.begin(), numbers.end()));
}

void RankGroup::together(const std::string& label, const std::function<void()>& work) {
  std::exception_ptr error;
  try {
    work();
  } catch (...) {
    error = std::current_exception();
  }
  if (size() == 1) {
    if (error) std::rethrow_exception(error);
    return;
  }
  std::vector<std::string> failures;
  // The error of this rank comes first also where the others end before they have it.
  if (const auto broken = error_of([&] { failures = exchange(encode_failure(error), label); }))
    std::rethrow_exception(error ? error : broken);
  const auto first = std::find_if(failures.begin(), failures.end(),
                                  [](const std::string& failure) { return !failure.empty(); });
  if (first == failures.end()) return;
  all_end_ = true;
  const auto at_fault = static_cast<int>(first - failures.begin());
  if (error && (at_fault == rank() || !is_said_by(*first, error))) std::rethrow_exception(error);
  throw decode_failure(*first, at_fault);
}

void RankGroup::refuse(const std::string& mistake) {
  all_end_ = true;
  if (is_first()) throw InvalidArgument(mistake);
  throw RankFailure(FailureKind::usage, mistake);
}

void RankGroup::stop_all(const std::string& why) {
  all_end_ = true;
  if (is_first()) throw Error(why);
  throw RankFailure(FailureKind::other, why);
}

std::unique_ptr<zero::RankStore> RankGroup::meet() {
  constexpr const char* kLabel = "where the ranks of NCCL meet";
  ListeningStore mine;
  together(kLabel, [&] {
    if (is_first()) mine = listen_tcp_store();
  });
  const std::string address = exchange(mine.address, kLabel).front();
  together(kLabel, [&] {
    if (!is_first()) mine.store = connect_tcp_store(address);
  });
  return std::move(mine.store);
}

RankLinks RankGroup::take_links(offload::Device& device, bool by_nccl) {
  RankLinks links{.communicator = std::move(ranks_.compute),
                  .gather_communicator = std::move(ranks_.gather)};
  if (!by_nccl) return links;
  store_ = meet();
  const auto with_nccl = [&](std::unique_ptr<zero::Communicator> host, const char* name) {
    return zero::make_paired_communicator(std::move(host),
                                          zero::make_nccl_communicator({.rank = rank(),
                                                                        .world_size = size(),
                                                                        .device = &device,
                                                                        .store = store_.get(),
                                                                        .name = name}));
  };
  links.communicator = with_nccl(std::move(links.communicator), "gradients");
  links.gather_communicator = with_nccl(std::move(links.gather_communicator), "weights");
  return links;
}

void RankGroup::abort(const zero::AbortReason& why) const {
  if (size() > 1 && !all_end_) ranks_.control->abort(why);
}

RankGroup join_ranks(const RankPlace& place, const std::atomic<int>& stop) {
  if (place.size == 1) return {};
  if (!zero::started_by_mpi()) {
    throw InvalidArgument("this process is rank " + std::to_string(place.rank) + " of " +
                          std::to_string(place.size) + " of " + place.launcher +
                          ", and \"sluice train\" joins its ranks by MPI: start it with " +
                          "\"mpirun -n " + std::to_string(place.size) +
                          " sluice train ...\" (torchrun starts Python scripts)");
  }
  return {zero::join_mpi({.silence_limit = zero::silence_limit_from_environment(), .stop = &stop}),
          place};
}

}  // namespace sluice::train
