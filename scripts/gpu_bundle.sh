#!/usr/bin/env bash
# Collects what a machine with a GPU and without a network lacks to run scripts/gpu_check.sh: the programs and tests, the
# wheel of the Python package, Sluice's libraries and those of the distribution that they need, stripped, with a manifest. LibTorch and CUDA are that
# machine's own (the torch wheel of its python3). scripts/gpu_bundle.sh [FOLDER] (.cache/gpu-bundle by default), from the
# tree configured in build/, which is built where it is not up to date. SLUICE_WHEEL: a wheel of this tree that was built for that machine's
# Python by scripts/wheel_for.py, where it has another version than .venv here. A warning at the end says when the wheel is not for Python 3.12.
# The machine gets the repository's files and this folder; it needs the same processor architecture, and a glibc and
# libstdc++ that are not older than here.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

if (($# > 1)) || [[ "${1:-}" == -* ]]; then fail "usage: scripts/gpu_bundle.sh [FOLDER]"; fi
folder="${1:-.cache/gpu-bundle}"
most_mib=60
gpu_python=3.12 # of the machines with a GPU so far
programs=(sluice adam_bench copy_bench plain_loop swap_bench)
# Loaded when they are needed, so no program says that it needs them.
libraries=(libsluice_train.so libsluice_train_gpu.so)

[[ -f build/CMakeCache.txt ]] || fail "build/ is not configured; run scripts/build.sh"
for tool in cmake ctest ldd strip python3; do
  command -v "$tool" >/dev/null || fail "$tool is not installed; run scripts/setup.sh"
done
if [[ -e "$folder" && ! -f "$folder/manifest.json" && -n "$(ls -A "$folder" 2>/dev/null)" ]]; then
  fail "$folder holds something else than a bundle"
fi
case "$(realpath -m "$folder")" in
  "$repo"/*) git check-ignore -q "$folder/manifest.json" || fail "$folder: git does not ignore it" ;;
esac

mapfile -t tests < <(ctest --test-dir build -N -L '^gpu$' | sed -n 's/^ *Test *#[0-9]*: //p')
((${#tests[@]} > 0)) || fail "the build has no test with the label gpu"
targets=("${programs[@]}" "${tests[@]}")
for library in "${libraries[@]}"; do
  name="${library#lib}"
  targets+=("${name%.so}")
done
cmake --build build --parallel "$(build_jobs)" --target "${targets[@]}" >&2 || fail "the build failed"

rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/lib"
for program in "${programs[@]}" "${tests[@]}"; do
  strip -o "$folder/bin/$program" "build/bin/$program"
done
for library in "${libraries[@]}"; do
  strip --strip-unneeded -o "$folder/lib/$library" "build/lib/$library"
done

# The Python package for this Python and this PyTorch; a machine with others leaves its checks out, and says so.
mkdir -p "$folder/python"
if [[ -n "${SLUICE_WHEEL:-}" ]]; then
  cp "$SLUICE_WHEEL" "$folder/python/"
elif scripts/test_python.sh --wheel >&2; then
  cp .cache/python/wheel/*.whl "$folder/python/"
fi

# Libraries that ldd finds, without those of LibTorch's wheel and those that every system with a C++ compiler has.
torch="$(sed -n 's/^LibTorch_ROOT_DIR:[A-Z]*=//p' build/CMakeCache.txt)"
[[ -n "$torch" ]] || torch="$(ldd build/lib/libsluice_train.so | sed -n 's|.* => \(.*\)/lib/libtorch_cpu\.so .*|\1|p')"
[[ -n "$torch" ]] || fail "libsluice_train.so does not say where LibTorch is"
packages="$(dirname "$torch")"
found="$(ldd "${programs[@]/#/build/bin/}" "${tests[@]/#/build/bin/}" "${libraries[@]/#/build/lib/}")"
if missing="$(grep 'not found' <<<"$found" | sort -u)"; then fail "libraries are missing here: $(xargs <<<"$missing")"; fi
everywhere='^(ld-linux.*|lib(c|m|dl|rt|util|pthread|resolv|stdc\+\+|gcc_s))\.so'
sed -n 's/^\s*\(\S*\) => \(\S*\) (.*/\1 \2/p' <<<"$found" | sort -u | while read -r name path; do
  if [[ "$path" == "$packages"/* || "$name" =~ $everywhere || -e "$folder/lib/$name" ]]; then continue; fi
  strip --strip-unneeded -o "$folder/lib/$name" "$(realpath "$path")"
done

clean=true
[[ -z "$(git status --porcelain --untracked-files=no)" ]] || clean=false
python3 - "$folder" "$(git rev-parse HEAD)" "$clean" "${tests[@]}" <<'PYTHON'
import hashlib
import json
import pathlib
import sys

folder, commit, clean, *tests = sys.argv[1:]
root = pathlib.Path(folder)
files = {
    str(path.relative_to(root)): {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "bytes": path.stat().st_size,
    }
    for path in sorted(root.glob("*/*"))
}
manifest = {"commit": commit, "clean": clean == "true", "tests": tests, "files": files}
(root / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
PYTHON

size_mib="$(du -sm "$folder" | cut -f1)"
if ((size_mib >= most_mib)); then
  du -a "$folder" | sort -rn | head -20 >&2
  fail "$folder has $size_mib MiB, allowed are less than $most_mib"
fi
say "$folder: $size_mib MiB, $(find "$folder" -type f | wc -l) files, commit $(git rev-parse --short=12 HEAD)$([[ "$clean" == true ]] || echo ", with changes that are not committed")"

warn() { printf '%s: warning: %s\n' "$(basename "$0")" "$*" >&2; }
wheels=("$folder"/python/*.whl)
mend="scripts/wheel_for.py $gpu_python INCLUDE FOLDER builds one, and SLUICE_WHEEL names it to this script"
case "${wheels[0]}" in
  */'*.whl') warn "there is no wheel, without which the checks of the Python package and row 10 do not run. For Python $gpu_python $mend" ;;
  *"-cp${gpu_python/./}-"*) ;;
  *) warn "with Python $gpu_python, which cannot load $(basename "${wheels[0]}"), the checks of the Python package and row 10 fail: $mend" ;;
esac
