#pragma once
// The schedules of torch.optim.lr_scheduler (torch 2.11): the rate of an optimizer step, counted
// from 1. Thread-safe: free functions without state.

#include <cstdint>

#include "sluice/config/lr_schedule.hpp"
#include "sluice/config/scheduler_config.hpp"

namespace sluice::config {

double rate(const ConstantLR& schedule, double base_lr, std::int64_t step);
double rate(const MultiStepLR& schedule, double base_lr, std::int64_t step);
double rate(const CosineAnnealingWarmRestarts& schedule, double base_lr, std::int64_t step);

// torch computes these rates from the ones before. `known` is any of these for this schedule and
// base_lr, or empty, and becomes the one of `step`.
double rate(const LinearLR& schedule, double base_lr, std::int64_t step, KnownRate& known);
double rate(const PolynomialLR& schedule, double base_lr, std::int64_t step, KnownRate& known);
double rate(const StepLR& schedule, double base_lr, std::int64_t step, KnownRate& known);
double rate(const ExponentialLR& schedule, double base_lr, std::int64_t step, KnownRate& known);
double rate(const CosineAnnealingLR& schedule, double base_lr, std::int64_t step, KnownRate& known);

}  // namespace sluice::config
