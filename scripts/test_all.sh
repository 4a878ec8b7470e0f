#!/usr/bin/env bash
# The long test, for before a change is called done: what .ci/run does, then the schema of the
# configuration beside its parser, learning rates beside those of DeepSpeed and torch, steps on 2,000
# schedules of a device that is late, longer runs with more kills and delays, 100 restarts of each kind, 200 losses of power,
# 300 faults of the drive of each kind, ThreadSanitizer, AddressSanitizer over engine/train, a minute of libFuzzer for each kind
# of file, clang's thread-safety analysis and clang-tidy over everything.
# scripts/test_all.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

if (($# > 0)); then fail "usage: scripts/test_all.sh (it takes no arguments)"; fi

stage "scripts/test.sh" scripts/test.sh --long --sanitizers || true
stage "schema of the configuration" scripts/config_schema.sh || true
stage "DeepSpeed's and torch's schedules" scripts/test_peers.sh || true
stage "2,000 late schedules" env SLUICE_SCHEDULES=2000 build/bin/late_gpu_test || true
deeper='Resume.AfterKills*:States.ASignalCommits*:States.EveryFormat*:*/Optimizers.OffloadedEquals*:Timing.*:RankFailures.AnErrorOfRankZero*'
for name in train_resume_test train_states_test train_optimizers_test train_timing_test rank_failures_test; do
  stage "$name, deep" env SLUICE_DEEP=1 "build/bin/$name" --gtest_filter="$deeper" || true
done
stage "100 restarts" env SLUICE_RESTARTS=100 build/bin/train_restarts_test || true
stage "200 losses of power" env SLUICE_POWER_CUTS=200 build/bin/power_loss_test || true
stage "300 faults of each kind" env SLUICE_FAULTS=300 build/bin/train_faults_test || true
build_and_test tsan tsan || true
build_and_test asan-torch "asan, ubsan, LibTorch" || true
stage "fuzz (libFuzzer)" scripts/fuzz.sh 60 || true
stage "thread safety (clang)" scripts/lint.sh thread-safety || true
stage "clang-tidy" scripts/lint.sh tidy --all || true
finish
