#pragma once
// Rates of this machine that predict plans: measured now by --probe, or stored by an earlier one.
// Confined to thread: main.

#include <map>
#include <optional>
#include <string>

#include "command/session.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/plan/rates.hpp"

namespace sluice::cli {

class KnownRates {
 public:
  // `path`: the rates file; empty: none is read or written.
  explicit KnownRates(std::string path) : path_(std::move(path)) {}

  // Measures the rates that predict `plan`, shows the progress, and saves them. Throws IoError when
  // a swap directory is missing or the file cannot be written, InvalidArgument when the file holds
  // something else (before measuring), and Interrupted at a signal.
  void measure(const plan::Plan& plan, Session& session);
  // The rates that were measured, else the stored ones. Returns nullopt when there are none.
  std::optional<plan::SavedRates> find(const plan::Plan& plan) const;
  // find() for the planner. The object must outlive the function.
  plan::FindRates finder() const;

 private:
  const std::string path_;
  std::map<std::string, plan::SavedRates> measured_;  // by rates_key()
};

}  // namespace sluice::cli
