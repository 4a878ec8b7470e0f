#!/usr/bin/env bash
# Installs what the build needs: packages of the distribution (Debian 12, Ubuntu 24.04), and LibTorch, as the torch
# wheel in .venv. Does nothing when all of it is there. Run it as root, or with sudo that asks for no password;
# otherwise it prints the line to run. SLUICE_TORCH=2.15.0 takes another version of LibTorch (cmake/FindLibTorch.cmake has
# the oldest and the newest one); set it for the other scripts too, which call this one. SLUICE_TORCH=none: the packages only.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

if (($# > 0)); then fail "usage: scripts/setup.sh (it takes no arguments)"; fi

torch_version="${SLUICE_TORCH:-2.11.0}"
packages=(g++ cmake ninja-build ccache pkg-config git
  liburing-dev libaio-dev libtbb-dev libhwy-dev libcli11-dev libspdlog-dev libjsoncpp-dev libxxhash-dev libhwloc-dev
  libopenmpi-dev openmpi-bin
  libgtest-dev libgmock-dev libbenchmark-dev python3 python3-dev python3-venv)
# Installed where the distribution has them; only scripts/format.sh and scripts/lint.sh need them.
optional_packages=(clang-format-14 clang-14 clang-tidy-14)

# Prints those of its arguments that are not installed.
not_installed() {
  local installed
  installed="$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)"
  local package
  for package in "$@"; do
    grep -qx "$package installed" <<<"$installed" || echo "$package"
  done
}

has_candidate() {
  local policy
  policy="$(apt-cache policy "$1" 2>/dev/null)"
  [[ "$policy" == *"Candidate: "[!\(]* ]]
}

# Runs a command with its output shown and kept.
logged() {
  local log="$1"
  shift
  "$@" 2>&1 | tee "$log"
}

install_packages() {
  local missing=("$@")
  command -v apt-get >/dev/null || fail "apt-get is not here (Debian 12 and Ubuntu 24.04 are supported); install by hand: ${missing[*]}"
  local line="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  local as_root=()
  if (($(id -u) != 0)); then
    if ! sudo -n true 2>/dev/null; then
      fail "packages are missing and this is neither root nor sudo without a password; run: sudo sh -c '$line'"
    fi
    as_root=(sudo -n)
  fi
  say "installing packages: ${missing[*]}"
  local log="$repo/.cache/setup-apt.log"
  logged "$log" "${as_root[@]}" apt-get update -q || explain_failure "$log" "apt-get update"
  local package wanted=()
  for package in "${missing[@]}"; do
    if has_candidate "$package"; then
      wanted+=("$package")
    elif [[ " ${optional_packages[*]} " == *" $package "* ]]; then
      say "note: this distribution has no $package; scripts/format.sh or scripts/lint.sh needs it"
    else
      fail "this distribution has no package $package (Debian 12 and Ubuntu 24.04 do)"
    fi
  done
  if ((${#wanted[@]} == 0)); then return; fi
  logged "$log" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
    "${wanted[@]}" || explain_failure "$log" "installing packages"
}

# The first Python that the wheel is made for.
find_python() {
  local candidate
  for candidate in python3 python3.13 python3.12 python3.11 python3.10; do
    if command -v "$candidate" >/dev/null &&
      "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))'; then
      echo "$candidate"
      return
    fi
  done
  fail "torch $torch_version needs Python 3.10 to 3.13, here is $(python3 --version 2>&1 || true); install one of them"
}

make_venv() {
  local python="$1"
  if [[ -x .venv/bin/python ]] && .venv/bin/python -c 'import sys' 2>/dev/null; then return; fi
  # Left behind by a Python that is gone, or by an interrupted run; never someone's other folder.
  if [[ -e .venv && ! -e .venv/pyvenv.cfg ]]; then
    fail ".venv exists and is not a virtual environment; move it away"
  fi
  rm -rf .venv
  local log="$repo/.cache/setup-venv.log"
  if "$python" -m venv .venv >"$log" 2>&1; then return; fi
  rm -rf .venv
  # Without ensurepip (a split package on Debian) the system's pip can fill the environment.
  if "$python" -m pip --version >/dev/null 2>&1 && "$python" -m venv --without-pip .venv >>"$log" 2>&1; then return; fi
  rm -rf .venv
  if grep -qi ensurepip "$log"; then
    fail "$python cannot make a virtual environment: it lacks ensurepip; install python3-venv ($("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])') for this Python) and run it again."
  fi
  explain_failure "$log" "making .venv"
}

installed_torch() {
  .venv/bin/python -c 'import importlib.metadata as m; print(m.version("torch").split("+")[0])' 2>/dev/null || true
}

install_torch() {
  local python="$1"
  make_venv "$python"
  if [[ "$(installed_torch)" != "$torch_version" ]]; then
    say "installing torch $torch_version into .venv (a few GB, for LibTorch)"
    local log="$repo/.cache/setup-pip.log"
    local pip=(.venv/bin/python -m pip)
    if ! "${pip[@]}" --version >/dev/null 2>&1; then pip=("$python" -m pip --python .venv/bin/python); fi
    logged "$log" "${pip[@]}" install --disable-pip-version-check "torch==$torch_version" ||
      explain_failure "$log" "installing torch $torch_version"
  fi
  local library
  library="$(compgen -G '.venv/lib/python3*/site-packages/torch/lib/libtorch_cpu.so' || true)"
  if [[ -z "$library" ]]; then
    fail "torch $torch_version is installed in .venv but has no lib/libtorch_cpu.so; remove .venv and run it again."
  fi
  echo "torch $torch_version" >"$marker"
}

mkdir -p .cache 2>/dev/null || fail "$repo cannot be written to by $(id -un)"
# Two runs at once would write the same .venv.
exec 9>.cache/setup.lock
if ! flock -n 9; then
  say "another setup.sh is at work here; waiting for it"
  flock 9
fi

if command -v dpkg-query >/dev/null; then
  mapfile -t missing < <(not_installed "${packages[@]}")
  for package in "${optional_packages[@]}"; do
    # The package has the name of its program.
    if ! command -v "$package" >/dev/null && command -v apt-cache >/dev/null && has_candidate "$package"; then
      missing+=("$package")
    fi
  done
else
  missing=("${packages[@]}")
fi
if ((${#missing[@]} > 0)); then install_packages "${missing[@]}"; fi

if [[ "$torch_version" == none ]]; then exit; fi
marker=.venv/.sluice-setup
if [[ "$(cat "$marker" 2>/dev/null)" != "torch $torch_version" || ! -x .venv/bin/python ]]; then
  python="$(find_python)"
  install_torch "$python"
  say "setup is complete"
fi
