// Updates of units whose states are in host memory: threads take pieces of the units. Bits, errors
// and their texts are those of one thread.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "message_of.hpp"
#include "sluice/base/text.hpp"
#include "sluice/config/lr_schedule.hpp"
#include "sluice/plan/make_plan.hpp"
#include "small_run.hpp"
#include "step/run_resources.hpp"
#include "update/state_updater.hpp"
#include "update/tile_placement.hpp"

namespace sluice::train {
namespace {

using ::testing::HasSubstr;

struct Case {
  config::MasterFormat master;
  config::MomentFormat moments;
  int threads;
};
void PrintTo(const Case& each, std::ostream* out) {
  *out << (each.master == config::MasterFormat::split ? "split" : "fp32")
       << (each.moments == config::MomentFormat::bf16 ? ", bf16 moments, " : ", ") << each.threads
       << " threads";
}

config::TrainConfig config_of(const Case& each) {
  config::TrainConfig config = test::small_config();
  config.gradient_clipping = 1;  // every unit has a home for its gradient
  config.optimizer.lr = 1e-3;
  config.sluice.master = each.master;
  config.sluice.moments = each.moments;
  config.sluice.threads.optimizer = each.threads;
  return config;
}

// Blocks of 111,840 elements, one piece and a part of another; an embedding of less than a piece.
plan::Plan plan_of(const config::TrainConfig& config) {
  config::ModelConfig model = test::small_model();
  model.n_embd = 96;
  model.vocab_size = 257;
  return plan::make_plan(config, model, plan::Placement::configured, plan::probe_machine(config));
}

constexpr std::size_t kBlock = 1;
constexpr std::uint64_t kPiece = plan::kPieceElements;

class Updates {
 public:
  explicit Updates(const config::TrainConfig& config)
      : plan_(plan_of(config)), resources_(test::make_resources(plan_, {SwapMode::create})) {
    test::fill_states(resources_, test::near_one);
    for (std::size_t u = 0; u < units(); ++u) {
      const auto gradient = this->gradient(u);
      for (std::size_t i = 0; i < gradient.size(); ++i)
        gradient[i] = to_bf16(0.25F + static_cast<float>(i % 89) / 64);
    }
  }

  StateUpdater& updater() { return *resources_.updater; }
  std::size_t units() const { return plan_.layouts.size(); }
  const plan::Plan& plan() const { return plan_; }
  TileRange all_of(std::size_t unit) { return {unit, 0, updater().placement().shard_count(unit)}; }
  StateSpans states(std::size_t unit) { return updater().placement().states(all_of(unit), {}); }
  std::span<std::byte> weight(std::size_t unit) {
    return updater().placement().weight(all_of(unit), {});
  }
  std::span<Bf16> gradient(std::size_t unit) {
    return as<Bf16>(updater().placement().gradient(all_of(unit), {}));
  }

  // The errors of an update of every unit; empty texts: none.
  std::vector<std::string> update(std::int64_t step) {
    const UpdateSettings settings =
        settings_of_update(plan_, step, config::learning_rate(plan_.config, step));
    std::vector<StateUpdater::Update> begun;
    for (std::size_t u = 0; u < units(); ++u) begun.push_back(updater().begin_update(u, settings));
    std::vector<std::string> errors(units());
    for (std::size_t u = 0; u < units(); ++u) {
      for (Ticket* ticket : {&begun[u].weights, &begun[u].states}) {
        try {
          ticket->finish();
        } catch (const Error& error) {
          errors[u] += error.what();
        }
      }
    }
    return errors;
  }

 private:
  const plan::Plan plan_;
  RunResources resources_;
};

using Bytes = std::vector<std::byte>;

Bytes copy_of(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

class UpdatePieces : public ::testing::TestWithParam<Case> {};

std::vector<Case> every_case() {
  std::vector<Case> cases;
  for (const auto master : {config::MasterFormat::fp32, config::MasterFormat::split}) {
    for (const auto moments : {config::MomentFormat::fp32, config::MomentFormat::bf16}) {
      for (const int threads : {1, 2, 7}) cases.push_back({master, moments, threads});
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Formats, UpdatePieces, ::testing::ValuesIn(every_case()));

TEST_P(UpdatePieces, HaveTheBitsOfAStepOfTheWholeUnit) {
  Updates updates(config_of(GetParam()));
  for (std::size_t u = 0; u < updates.units(); ++u)
    EXPECT_TRUE(updates.updater().placement().at_home(u));
  std::vector<std::vector<Bytes>> expected;
  for (std::size_t u = 0; u < updates.units(); ++u) {
    std::vector<Bytes> parts;
    for (const auto part : updates.states(u)) parts.push_back(copy_of(part));
    parts.push_back(copy_of(updates.weight(u)));
    StateSpans states;
    for (std::size_t i = 0; i < states.size(); ++i) states[i] = parts[i];
    Bytes gradient = copy_of(std::as_bytes(updates.gradient(u)));
    cpu_adam::Tile tile = tile_of(updates.plan(), states, gradient, parts.back());
    tile.first_element = updates.updater().placement().first_element(u);
    for (const std::int64_t step : {1, 2}) {
      const UpdateSettings settings = settings_of_update(
          updates.plan(), step, config::learning_rate(updates.plan().config, step));
      EXPECT_TRUE(cpu_adam::step_tile(settings.groups.front(), settings.step, tile));
    }
    expected.push_back(std::move(parts));
  }
  for (const std::int64_t step : {1, 2}) {
    for (const std::string& error : updates.update(step)) EXPECT_EQ(error, "");
  }
  for (std::size_t u = 0; u < updates.units(); ++u) {
    const StateSpans states = updates.states(u);
    for (std::size_t i = 0; i < states.size(); ++i)
      EXPECT_EQ(copy_of(states[i]), expected[u][i]) << "unit " << u << ", part " << i;
    EXPECT_EQ(copy_of(updates.weight(u)), expected[u].back()) << "unit " << u;
  }
}

// With an epsilon of 0, an element whose gradient has always been 0 becomes 0 / 0.
TEST_P(UpdatePieces, NameTheFirstElementThatBecomesNonFinite) {
  config::TrainConfig config = config_of(GetParam());
  config.optimizer.eps = 0;
  for (const bool first_piece_too : {false, true}) {
    Updates updates(config);
    std::vector<std::uint64_t> zeros = {kPiece + 4'000, kPiece + 9, kPiece + 30'000};
    if (first_piece_too) zeros.push_back(kPiece - 1);
    for (const std::uint64_t i : zeros) updates.gradient(kBlock)[i] = to_bf16(0);
    const std::vector<std::string> errors = updates.update(1);
    const std::uint64_t first = *std::min_element(zeros.begin(), zeros.end());
    const auto& params = updates.plan().layouts[kBlock].params;
    const auto param = std::find_if(params.begin(), params.end(), [&](const auto& each) {
      return first < each.offset_count + each.count;
    });
    for (std::size_t u = 0; u < errors.size(); ++u) {
      if (u == kBlock) {
        EXPECT_THAT(errors[u], HasSubstr("the update of " + param->name + " (element " +
                                         format_count(first - param->offset_count) + " of " +
                                         format_count(param->count) + ") gave a non-finite value"));
      } else {
        EXPECT_EQ(errors[u], "");
      }
    }
    EXPECT_TRUE(updates.updater().has_failed());
    for (int call = 0; call < 2; ++call) {
      EXPECT_THROW(updates.updater().check_updates(), Error);
    }
  }
}

TEST_P(UpdatePieces, TellTheErrorOfTheFirstFillThatFails) {
  Updates updates(config_of(GetParam()));
  const std::uint64_t count = updates.all_of(kBlock).count;
  std::vector<std::atomic<int>> filled(count);
  const auto fill = [&](std::uint64_t from_failing) {
    return [&filled, from_failing](std::uint64_t first, std::span<float> values) {
      if (first + values.size() > from_failing) throw Error("at " + std::to_string(first));
      for (std::size_t i = 0; i < values.size(); ++i) ++filled[first + i];
    };
  };
  Ticket failing = updates.updater().begin_initialise(kBlock, fill(kPiece));
  EXPECT_EQ(sluice::test::message_of<Error>([&] { failing.finish(); }),
            "at " + std::to_string(kPiece));
  for (auto& each : filled) each = 0;
  updates.updater().begin_initialise(kBlock, fill(count)).finish();
  for (const auto& each : filled) ASSERT_EQ(each, 1);
}

TEST_P(UpdatePieces, BeginAfterTheEarlierWorkOnTheUnit) {
  Updates updates(config_of(GetParam()));
  std::vector<Ticket> work;
  for (int value = 1; value <= 5; ++value) {
    for (std::size_t u = 0; u < updates.units(); ++u) {
      work.push_back(
          updates.updater().begin_initialise(u, [value](std::uint64_t, std::span<float> values) {
            std::fill(values.begin(), values.end(), static_cast<float>(value));
          }));
    }
  }
  finish_all(work);
  for (std::size_t u = 0; u < updates.units(); ++u) {
    const StateSpans states = updates.states(u);
    if (GetParam().master == config::MasterFormat::split) {
      for (const Bf16 weight : as<Bf16>(states[0])) ASSERT_EQ(to_fp32(weight), 5.0F);
    } else {
      for (const float master : as<float>(states[0])) ASSERT_EQ(master, 5.0F);
    }
  }
}

}  // namespace
}  // namespace sluice::train
