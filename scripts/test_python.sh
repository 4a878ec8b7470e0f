#!/usr/bin/env bash
# Builds the Python package's wheel, installs it into an environment without compilers on PATH, and runs its tests there:
# first without PyTorch, then with the PyTorch of .venv, then with Transformers, Accelerate, PEFT and TRL too.
# scripts/test_python.sh [--short] [RESULTS] (results of pytest as JUnit XML, RESULTS/python, python-torch and python-hf;
# .cache/test-results by default; --short: without the tests with the marker "long",
# and those of Hugging Face's libraries), or scripts/test_python.sh --wheel:
# builds the wheel into .cache/python/wheel, no more.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

only_wheel=no short=no which=()
if [[ "${1:-}" == --wheel ]]; then
  only_wheel=yes
  shift
elif [[ "${1:-}" == --short ]]; then
  short=yes which=(-m "not long")
  shift
fi
results="$(mkdir -p "${1:-.cache/test-results}" && cd "${1:-.cache/test-results}" && pwd)"
place="$repo/.cache/python"
python=.venv/bin/python
[[ -x "$python" ]] || fail "there is no $python; run scripts/setup.sh"

build_wheel() {
  local log="$place/wheel.log"
  rm -rf "$place/wheel"
  # The compiler, the warnings and the groups of sources of the preset ci: so the compiler cache has the libraries from its build. A folder of
  # its own, since a user's `pip install .` has other ones.
  CXX="$(command -v c++)" "$place/build/bin/python" -m pip wheel . --disable-pip-version-check --no-deps --no-build-isolation \
    --wheel-dir "$place/wheel" --config-settings=cmake.define.SLUICE_WERROR=ON \
    --config-settings=cmake.define.SLUICE_UNITY=ON --config-settings=build-dir=build-python-ci >"$log" 2>&1 ||
    { tail -40 "$log"; explain_failure "$log" "building the wheel"; }
  ls "$place"/wheel/*.whl
}

# Runs pytest in the environment of the tests: run_pytest RESULTS [NAME=VALUE...] PATH...
run_pytest() {
  local folder="$results/$1" variables=()
  shift
  while [[ "$1" == *=* ]]; do
    variables+=("$1")
    shift
  done
  rm -rf "$folder"
  mkdir -p "$folder"
  timeout 1200 env PATH="$place/test/bin" CUDA_VISIBLE_DEVICES= OMP_WAIT_POLICY=passive "${variables[@]}" \
    python -m pytest -q --durations=5 --junit-xml "$folder/ctest.xml" "${which[@]}" "$@"
}

mapfile -t build_packages < <(sed -n 's/^requires = \[\(.*\)\]$/\1/p' pyproject.toml | tr -d '" ' | tr ',' '\n')
mapfile -t test_packages <tests/python/requirements.txt
mapfile -t hf_packages <tests/python/with_hf/requirements.txt
torch="$(site_packages "$python")"
environment "$place/build" "${build_packages[@]}"
if [[ "$only_wheel" == yes ]]; then
  build_wheel
  exit
fi
environment "$place/test" "${test_packages[@]}"
names=(test)
if [[ "$short" == no ]]; then
  beside="$torch" environment "$place/hf" "${hf_packages[@]}"
  names+=(hf)
fi
build_wheel
for name in "${names[@]}"; do
  "$place/$name/bin/python" -m pip install --disable-pip-version-check -q --no-deps --no-index --force-reinstall "$place"/wheel/*.whl
done
result=0
run_pytest python tests/python --ignore=tests/python/with_torch --ignore=tests/python/with_hf || result=1
# Many of these and of the next start programs and wait for them: a file of tests on each core.
run_pytest python-torch PYTHONPATH="$torch" -n "$(nproc)" --dist loadfile tests/python/with_torch || result=1
if [[ "$short" == yes ]]; then exit "$result"; fi
run_pytest python-hf PATH="$place/hf/bin" -n "$(nproc)" --dist loadfile tests/python/with_hf || result=1
exit "$result"
