#include "saved/checkpoint_writer.hpp"

#include <algorithm>
#include <deque>
#include <exception>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "saved/checkpoint_directory.hpp"
#include "saved/draft.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/rank_failure.hpp"
#include "sluice/models/rank_commit.hpp"
#include "sluice/offload/checkpoint_folder.hpp"
#include "sluice/offload/swap_store.hpp"

namespace sluice::train {

namespace fs = std::filesystem;

// One checkpoint, from its draft to its name. After begin(), the writer's thread has it until
// written_ ends; then the thread that trains.
struct CheckpointWriter::Job {
  Draft draft;
  fs::path folder;  // of this rank's part
  models::RunState state;
  std::unique_ptr<nvme::IoEngine> io;
  std::unique_ptr<offload::SwapStore> store;  // null before `created` has ended
  Ticket created;
  std::vector<Ticket> copies;  // by unit; empty for a frozen one
  std::uint64_t digest = 0;    // of the part's manifest
  std::string path;            // where the checkpoint is; of one rank
};

namespace {

std::string text_of(const Draft& draft, const std::string& path) {
  return "checkpoint of step " + std::to_string(draft.step) + " in " + path +
         (path == offload::checkpoint_path(draft.directory, draft.step)
              ? ""
              : ", beside one of another run, which is kept");
}

// The checkpoint gets an I/O engine of its own, so it does not queue behind the run's reads.
CheckpointWriter::MakeIo like_the_runs(const RunResources& resources) {
  return [&resources] {
    std::string ignored;
    return make_io_engine(resources.plan, ignored, resources.trace);
  };
}

// A checkpoint needs a thread and an I/O queue beside its files. Where the system has none left, it
// cannot be written, as on a drive that fails: StorageError instead of other errors.
template <typename Make>
auto made_for(const fs::path& folder, const Make& make) {
  try {
    return make();
  } catch (const std::exception& error) {
    if (failure_kind(std::current_exception()) == FailureKind::storage) throw;
    throw StorageError(folder.string(), "cannot be written: " + std::string(error.what()));
  }
}

}  // namespace

CheckpointWriter::CheckpointWriter(RunResources& resources, MakeIo make_io)
    : resources_(resources),
      make_io_(make_io ? std::move(make_io) : like_the_runs(resources)),
      row_(resources.trace, "checkpoint") {}

CheckpointWriter::~CheckpointWriter() {
  worker_.reset();
  if (!job_) return;
  try {
    written_.finish();
    if (!job_->path.empty()) log(LogLevel::info, text_of(job_->draft, job_->path));
  } catch (const std::exception& error) {
    log(LogLevel::error, "the checkpoint of step " + std::to_string(job_->draft.step) +
                             " is missing: " + error.what());
    if (job_->state.world_size == 1) remove_draft(job_->draft);
  }
}

std::optional<std::int64_t> CheckpointWriter::writing() const {
  return job_ ? std::optional(job_->draft.step) : std::nullopt;
}

void CheckpointWriter::begin(Progress& progress, const RunIdentity& identity,
                             const std::string& directory) {
  SLUICE_CHECK(!job_, "one checkpoint is written at a time");
  zero::Communicator& ranks = *resources_.communicator;
  auto job = std::make_unique<Job>();
  job->draft = {.directory = directory, .step = progress.step, .keep = 1, .before = {}};
  std::optional<DirectoryMark> mark;
  const std::vector<std::string> begun =
      models::unpack_texts(models::do_on_first(ranks, directory, [&] {
        resources_.files.check_lock(directory);
        const std::string seen = ranks.world_size() > 1 ? mark.emplace(directory).text() : "";
        job->draft = begin_draft(directory, progress,
                                 resources_.plan.config.sluice.checkpoints.keep, known_);
        return models::pack_texts({std::to_string(order_above(job->draft, progress)), seen,
                                   std::to_string(job->draft.last_saved_at)});
      }));
  progress.order = std::stoll(begun.at(0));
  job->state = make_run_state(resources_.plan, progress, identity);
  const std::int64_t last_saved_at = std::stoll(begun.at(2));
  job->state.saved_at = std::max(job->state.saved_at, last_saved_at + 1);
  job->folder = job->draft.path();
  try {
    models::do_on_all(ranks, directory, [&] {
      if (!worker_)
        worker_ = made_for(job->folder, [] { return std::make_unique<Worker>("sluice-save"); });
      if (ranks.world_size() > 1) {
        const std::string why_not = find_why_not_shared(directory, begun.at(1), ranks.rank());
        if (!why_not.empty()) throw StorageError(directory, why_not);
        job->folder = offload::rank_folder(job->folder.string(), ranks.rank(), ranks.world_size());
        make_folder(job->folder);
      }
      begin_copies(*job);
    });
  } catch (...) {
    (void)error_of([&] { job->created.finish(); });
    for (Ticket& copy : job->copies) (void)error_of([&] { copy.finish(); });
    if (ranks.rank() == 0) remove_draft(job->draft);
    throw;
  }
  written_ = worker_->begin([this, job = job.get()] { write(*job); });
  job_ = std::move(job);
}

// Units without room for a copy are written by the updater, and need the files at once.
void CheckpointWriter::begin_copies(Job& job) {
  const plan::Plan& plan = resources_.plan;
  job.created = worker_->begin([&job, this] {
    const models::RunState& state = job.state;
    job.io = made_for(job.folder, make_io_);
    job.store = offload::SwapStore::create(
        job.folder.string(), *job.io,
        models::state_shards(state.units, state.format, state.world_size), Durability::none,
        nvme::DirectIo::automatic);
  });
  job.copies.resize(plan.units.size());
  const auto copied = [&](std::size_t u) { return resources_.state_copies->has_room(u); };
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    if (copied(u))
      job.copies[u] = resources_.updater->begin_copy_to(u, resources_.state_copies->parts(u));
  }
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    if (copied(u) || plan.units[u].frozen) continue;
    job.created.finish();
    job.copies[u] = resources_.updater->begin_copy_to(u, *job.store);
  }
}

// On the writer's thread.
void CheckpointWriter::write(Job& job) const {
  const TraceSpan span(row_, "write", {}, {"step", job.draft.step});
  try {
    job.created.finish();
    for (std::size_t u = 0; u < job.copies.size(); ++u) {
      job.copies[u].finish();
      if (resources_.state_copies->has_room(u)) write_copy(job, u);
    }
    job.store->commit(job.state.step, models::to_json(job.state));
    job.store->close_cleanly();
    // Whatever "durability" says: older checkpoints are removed next, which loss of power spares.
    sync_tree(job.folder);
    job.digest = offload::SwapStore::committed_digest(job.folder.string());
    job.store.reset();
    job.io.reset();
    if (job.state.world_size == 1) job.path = publish(job.draft);
  } catch (...) {
    // They use the store, or memory of the next checkpoint.
    for (Ticket& copy : job.copies) (void)error_of([&] { copy.finish(); });
    throw;
  }
}

void CheckpointWriter::write_copy(Job& job, std::size_t unit) const {
  constexpr std::size_t kPieceBytes = 4 * offload::kChecksumChunkBytes;
  constexpr std::size_t kInFlight = 8;  // pieces; 32 MiB keep a drive busy
  const plan::Plan& plan = resources_.plan;
  const StateSpans parts = resources_.state_copies->parts(unit);
  std::vector<std::size_t> shards;
  std::deque<Ticket> writes;
  const auto finish_down_to = [&](std::size_t left) {
    for (; writes.size() > left; writes.pop_front()) writes.front().finish();
  };
  try {
    for (std::size_t i = 0; i < plan.state_format.part_count(); ++i) {
      shards.push_back(
          job.store->index_of(models::shard_name(plan.layouts[unit], plan.state_format.part(i))));
      for (std::size_t at = 0; at < parts[i].size(); at += kPieceBytes) {
        finish_down_to(kInFlight - 1);
        writes.push_back(job.store->begin_write(
            shards.back(), at, parts[i].subspan(at, std::min(kPieceBytes, parts[i].size() - at))));
      }
    }
    finish_down_to(0);
  } catch (...) {
    for (Ticket& each : writes) (void)error_of([&] { each.finish(); });
    throw;
  }
  for (const std::size_t shard : shards) job.store->finish_update(shard);
}

// The parts of all ranks are whole.
std::string CheckpointWriter::publish_together(const Job& job) {
  zero::Communicator& ranks = *resources_.communicator;
  offload::RankManifest manifest{.step = job.draft.step, .digests = {}};
  for (const std::string& each :
       models::gather_texts(ranks, std::to_string(job.digest), "digests of a checkpoint's parts"))
    manifest.digests.push_back(std::stoull(each));
  const std::string draft = job.draft.path().string();
  return models::do_on_first(ranks, draft, [&] {
    offload::replace_rank_manifest(draft, manifest, Durability::power);
    return publish(job.draft);
  });
}

void CheckpointWriter::poll(Progress& progress) {
  if (!job_) return;
  double unfinished[] = {written_.done() ? 0.0 : 1.0};
  zero::Communicator& ranks = *resources_.communicator;
  if (ranks.world_size() > 1)
    ranks.all_reduce(unfinished, "whether the checkpoint of step " +
                                     std::to_string(job_->draft.step) + " is written");
  if (unfinished[0] == 0) finish(progress);
}

void CheckpointWriter::finish(Progress& progress) {
  if (!job_) return;
  zero::Communicator& ranks = *resources_.communicator;
  written_.wait();
  const std::unique_ptr<Job> job = std::move(job_);
  try {
    models::do_on_all(ranks, job->draft.path().string(), [&] { written_.finish(); });
    if (ranks.world_size() > 1) job->path = publish_together(*job);
  } catch (...) {
    if (ranks.rank() == 0) remove_draft(job->draft);
    throw;
  }
  progress.committed_step = std::max(progress.committed_step, job->draft.step);
  progress.checkpoint_step = job->draft.step;
  log(LogLevel::info, text_of(job->draft, job->path));
}

}  // namespace sluice::train
