#pragma once
// Ranks as threads, each with a store, whose states follow from the step: for tests of saved states
// of several ranks.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/models/rank_commit.hpp"
#include "sluice/models/run_state.hpp"
#include "sluice/models/saved_state.hpp"
#include "sluice/models/state_reader.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/swap_store.hpp"
#include "sluice/zero/communicator.hpp"
#include "temp_dir.hpp"

namespace sluice::models::test {

using offload::SwapStore;

inline std::unique_ptr<nvme::IoEngine> make_engine() {
  return std::make_unique<nvme::IoEngine>(
      nvme::make_backend(nvme::BackendKind::threads, 16, 2).backend, nvme::IoEngineOptions{});
}

// A unit of several checksum chunks whatever the number of ranks, and one that is mostly padding.
inline std::vector<zero::UnitLayout> layouts(int world_size) {
  std::vector<zero::UnitLayout> units(2);
  units[0].name = "wide";
  zero::add_param(units[0], "wide.weight", {1000, 1003});
  zero::add_param(units[0], "wide.bias", {77});
  units[1].name = "small";
  zero::add_param(units[1], "small.weight", {100});
  for (zero::UnitLayout& unit : units) zero::finish_layout(unit, world_size);
  return units;
}

inline RunState state_at(std::int64_t step, int world_size) {
  RunState state;
  state.line = "line";
  state.order = state.step = step;
  state.model = "{}";
  state.units = layouts(world_size);
  state.compute_dtype = "fp32";
  state.world_size = world_size;
  state.version = "0";
  return state;
}

// An element of a part of a unit after `step`; 0 in the padding.
inline float value_of(const zero::UnitLayout& unit, std::size_t part, std::uint64_t element,
                      std::int64_t step) {
  const bool is_param = std::ranges::any_of(unit.params, [&](const zero::ParamLayout& param) {
    return element >= param.offset_count && element < param.offset_count + param.count;
  });
  if (!is_param) return 0;
  const std::uint64_t mixed = (element + 1) * 2654435761U + part * 97 + unit.name.size() * 13 +
                              static_cast<std::uint64_t>(step) * 40503U;
  return static_cast<float>(mixed % 16777213U);
}

// Writes this rank's part of `step`, without a commit.
inline void write_step(SwapStore& store, std::int64_t step, int rank, int world_size) {
  const RunState state = state_at(step, world_size);
  for (const zero::UnitLayout& unit : state.units) {
    const zero::ShardRange range = zero::shard_range(unit, rank, world_size);
    for (std::size_t part = 0; part < state.format.part_count(); ++part) {
      std::vector<float> values(range.count);
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = value_of(unit, part, range.begin + i, step);
      const std::size_t shard = store.index_of(shard_name(unit, state.format.part(part)));
      store.begin_write(shard, 0, std::as_bytes(std::span(values))).finish();
      store.finish_update(shard);
    }
  }
}

// One rank: its communicator, its engine and its store in a directory of all.
struct Rank {
  std::unique_ptr<zero::Communicator> communicator;
  std::unique_ptr<nvme::IoEngine> engine = make_engine();
  std::unique_ptr<SwapStore> store;
  int rank = 0;
  int world_size = 1;
  std::string directory;

  std::string folder() const {
    return world_size == 1 ? directory : offload::rank_folder(directory, rank, world_size);
  }
  void create(Durability durability = Durability::process) {
    std::filesystem::create_directory(folder());
    const RunState state = state_at(0, world_size);
    store =
        SwapStore::create(folder(), *engine, state_shards(state.units, state.format, world_size),
                          durability, nvme::DirectIo::automatic);
  }
  // As the next run does: its part is that of the step of all ranks.
  void resume(Durability durability = Durability::process) {
    if (world_size > 1) {
      const auto committed = offload::load_rank_manifest(directory);
      SwapStore::settle_commit(folder(), committed->digests.at(static_cast<std::size_t>(rank)));
    }
    store = SwapStore::open(folder(), *engine, durability, nvme::DirectIo::automatic);
  }
  void write(std::int64_t step) { write_step(*store, step, rank, world_size); }
  void commit(std::int64_t step) {
    commit_parts(*store, *communicator, directory, step, to_json(state_at(step, world_size)));
  }
};

// Runs `work` of each rank on a thread of its own. Returns each rank's error, "" without one.
inline std::vector<std::string> on_ranks(const std::string& directory, int world_size,
                                         const std::function<void(Rank&)>& work) {
  auto communicators = zero::make_thread_communicators(world_size);
  std::vector<std::string> errors(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    threads.emplace_back([&, rank, index] {
      Rank own;
      own.communicator = std::move(communicators[index]);
      own.rank = rank;
      own.world_size = world_size;
      own.directory = directory;
      try {
        work(own);
      } catch (const std::exception& error) {
        errors[index] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline const std::vector<std::string> kNoErrors2 = {"", ""};

// A new directory in which `ranks` commit steps 1 to `steps`.
inline void commit_steps(const std::string& directory, int ranks, std::int64_t steps,
                         Durability durability = Durability::process) {
  const std::vector<std::string> errors = on_ranks(directory, ranks, [&](Rank& rank) {
    rank.create(durability);
    for (std::int64_t step = 1; step <= steps; ++step) {
      rank.write(step);
      rank.commit(step);
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// Empty, or the first element of the state in `directory` that is not that of `step`. Reads ranges
// as `readers` ranks would.
inline std::string difference_from(const std::string& directory, std::int64_t step,
                                   int readers = 1) {
  const auto engine = make_engine();
  const SavedState saved = read_state(directory);
  if (saved.state.step != step) return "step " + std::to_string(saved.state.step);
  const StateReader reader(saved, *engine);
  for (const zero::UnitLayout& unit : layouts(readers)) {
    for (std::size_t part = 0; part < saved.state.format.part_count(); ++part) {
      for (int rank = 0; rank < readers; ++rank) {
        const zero::ShardRange range = zero::shard_range(unit, rank, readers);
        std::vector<float> values(range.count, 0);
        reader.read(unit.name, part, range.begin, std::as_writable_bytes(std::span(values)));
        for (std::size_t i = 0; i < values.size(); ++i) {
          if (values[i] == value_of(unit, part, range.begin + i, step)) continue;
          return unit.name + " part " + std::to_string(part) + " element " +
                 std::to_string(range.begin + i);
        }
      }
    }
  }
  return "";
}

}  // namespace sluice::models::test
