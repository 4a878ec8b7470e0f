#!/usr/bin/env python3
"""Removes, one at a time, the waits that order work, and tells which removals no test notices.

    scripts/mutate_order.py --list [--only FILE] [--shard I/N]
    scripts/mutate_order.py --target NINJA_TARGET... --test COMMAND... [--only FILE] [--shard I/N]
                            [--limit SECONDS] [--results FILE] [--build FOLDER]

A mutant is one of these changes in engine/train/src, offload/src and zero/src:
    ticket   a ticket is not finished: it is leaked, since its destructor would wait too
    tickets  the same for finish_all()
    stall    the same for a wait that a StallMeter measures
    point    a compute point is not taken: the copy after it waits for no compute work
    after    a call gets an empty compute point
    event    a device does not wait for the event of a compute point

All mutants are written into the source files as conditions on the variable SLUICE_MUTANT of the environment, built once,
tested one by one, and taken back; a run that was cut off is taken back by the next call. A mutant that does not compile so
is removed from the sources and judged by a build of its own. Results are appended to a file (.cache/mutants/results.tsv),
and mutants that have one are left out.
tests/mutants/survivors.md has the mutants that are known to survive, with the reasons.
"""
import argparse
import hashlib
import os
import pathlib
import re
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("zero/src", "offload/src", "engine/train/src")
CACHE = ROOT / ".cache" / "mutants"
SAVED = CACHE / "originals"  # the files that are changed now, under their paths
SURVIVORS = ROOT / "tests" / "mutants" / "survivors.md"
NO_POINT = "(static_cast<void>(%s), std::decay_t<decltype(%s)>{})"  # names the point, which would be unused else
LEAK = "static_cast<void>(new auto(std::move(%s)))"
CHOICE = '(sluice_mutant("%s") ? (%s) : (%s))'
CHOSEN = """#ifndef SLUICE_MUTANT
#define SLUICE_MUTANT
#include <cstdlib>
#include <cstring>
namespace {
inline bool sluice_mutant(const char* key) {
  static const char* const chosen = std::getenv("SLUICE_MUTANT");
  return chosen != nullptr && std::strcmp(chosen, key) == 0;
}
}  // namespace
#endif
"""


def blanked(text):
    """The text with comments and literals as spaces, of the same length."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)


def closing(code, at):
    """The place of the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(code)):
        depth += (code[i] in "([{") - (code[i] in ")]}")
        if depth == 0:
            return i
    raise ValueError("unbalanced brackets")


def opening(code, at):
    depth = 0
    for i in range(at, -1, -1):
        depth += (code[i] in ")]}") - (code[i] in "([{")
        if depth == 0:
            return i
    raise ValueError("unbalanced brackets")


def expression_begin(code, end):
    """Where the postfix expression (a.b->c(d)[e]) that ends before `end` begins."""
    at = end
    while True:
        while code[at - 1].isspace():
            at -= 1
        while code[at - 1] in ")]":
            at = opening(code, at - 1)
        while re.match(r"\w", code[at - 1]):
            at -= 1
        before = code[:at].rstrip()
        joiner = next((j for j in (".", "->", "::") if before.endswith(j)), None)
        if joiner is None:
            return at
        at = len(before) - len(joiner)


def leak_of_call(text, code, begin, end):
    """Leaks the first argument of a call and names the others, which would be unused else."""
    depth = 0
    cuts = [begin - 1]
    for i in range(begin, end):
        depth += (code[i] in "([{") - (code[i] in ")]}")
        if depth == 0 and code[i] == ",":
            cuts.append(i)
    cuts.append(end)
    arguments = [text[a + 1:b].strip() for a, b in zip(cuts, cuts[1:])]
    named = [f"static_cast<void>({a})" for a in arguments[1:] if not a.startswith("{")]
    return ", ".join([LEAK % arguments[0]] + named)


def ticket_mutants(text, code):
    for found in re.finditer(r"(\.|->)\s*finish\(\)(?=\s*;)", code):
        begin = expression_begin(code, found.start())
        owner = text[begin:found.start()].rstrip()
        if code[:begin].rstrip().endswith("return") or not owner:
            continue
        yield "ticket", begin, found.end(), LEAK % (f"*({owner})" if found.group(1) == "->" else owner)
    for found in re.finditer(r"(?<![\w.>])finish_all\(", code):
        end = closing(code, found.end() - 1)
        yield "tickets", found.start(), end + 1, f"({leak_of_call(text, code, found.end(), end)})"
    for found in re.finditer(r"\bstalls_?\.(wait|finish)\(", code):
        end = closing(code, found.end() - 1)
        begin = expression_begin(code, end + 1)
        owner = text[begin:found.start()] + found.group().split(".")[0]
        leak = f"static_cast<void>({owner}), " + leak_of_call(text, code, found.end(), end)
        value = f"({leak}, decltype({text[begin:end + 1]}){{}})"
        yield "stall", begin, end + 1, value if found.group(1) == "wait" else f"({leak})"


def point_mutants(_, code):
    for found in re.finditer(r"(?<=[^=!<>]=)\s*([\w.>()-]*\bmark_compute\(\))(?=\s*;)", code):
        yield "point", found.start(1), found.end(1), NO_POINT % (found.group(1), found.group(1))
    for found in re.finditer(r"(?<=[(,{])\s*((?:[\w.]|->)*\b(?:after|unused)|(?:[\w.]|->)+mark_compute\(\))(?=\s*[),}])", code):
        if not is_capture(code, found.start(1)):
            yield "after", found.start(1), found.end(1), NO_POINT % (found.group(1), found.group(1))
    for found in re.finditer(r"\bafter\.event\(\) (!=|==) nullptr", code):
        yield "event", found.start(), found.end(), "false" if found.group(1) == "!=" else "true"


def is_capture(code, at):
    """Whether the name is captured by a lambda: [this, after]."""
    depth = 0
    for i in range(at - 1, max(0, at - 400), -1):
        depth += (code[i] in ")]}") - (code[i] in "([{")
        if depth < 0:
            return code[i] == "["
    return False


class Mutant:
    def __init__(self, path, text, twins, kind, begin, end, replacement):
        self.path, self.kind, self.begin, self.end, self.replacement = path, kind, begin, end, replacement
        self.line = text.count("\n", 0, begin) + 1
        self.was = " ".join(text[begin:end].split())
        line = text[text.rfind("\n", 0, begin) + 1:text.find("\n", end)]
        # The key survives changes elsewhere in the file; equal lines are told apart by their order.
        described = f"{path} {kind} {line} {self.was}"
        twins[described] = twins.get(described, 0) + 1
        self.key = hashlib.sha256(f"{described} {twins[described]}".encode()).hexdigest()[:10]

    def __str__(self):
        return f"{self.key} {self.path}:{self.line} {self.kind}: {self.was}"


def mutants_of(path):
    text = (ROOT / path).read_text()
    code = blanked(text)
    found = list(ticket_mutants(text, code))
    if "ComputePoint" in text or "mark_compute" in text:
        found += point_mutants(text, code)
    twins = {}
    return [Mutant(path, text, twins, *m) for m in sorted(found, key=lambda m: m[1])]


def all_mutants(only, shard):
    paths = [str(p.relative_to(ROOT)) for folder in FOLDERS for p in sorted((ROOT / folder).rglob("*.cpp"))]
    chosen = [m for path in paths if not only or path in only for m in mutants_of(path)]
    index, count = map(int, shard.split("/"))
    return [m for i, m in enumerate(chosen) if i % count == index - 1]


def restore(paths=None):
    for saved in sorted(SAVED.rglob("*")):
        path = saved.relative_to(SAVED)
        if saved.is_file() and (paths is None or str(path) in paths):
            (ROOT / path).write_text(saved.read_text())
            saved.unlink()


def write(path, text):
    saved = SAVED / path
    saved.parent.mkdir(parents=True, exist_ok=True)
    saved.write_text((ROOT / path).read_text())
    (ROOT / path).write_text(text)


def apply(mutant):
    text = (ROOT / mutant.path).read_text()
    write(mutant.path, text[:mutant.begin] + mutant.replacement + text[mutant.end:])


def apply_all(mutants):
    """Writes the mutants as conditions, but for those inside another one. Returns those that it wrote."""
    written = []
    for path in sorted({m.path for m in mutants}):
        text, chosen, end = (ROOT / path).read_text(), [], 0
        for mutant in (m for m in mutants if m.path == path and m.begin >= end):
            chosen, end = chosen + [mutant], mutant.end
        for m in reversed(chosen):
            text = text[:m.begin] + CHOICE % (m.key, m.replacement, text[m.begin:m.end]) + text[m.end:]
        write(path, CHOSEN + text)
        written += chosen
    return written


def run(command, limit, log, key=""):
    """The exit status, or None past the limit. The command is a group of processes, which ends with it."""
    with open(log, "ab") as out:
        process = subprocess.Popen(command, shell=True, cwd=ROOT, stdout=out, stderr=out, start_new_session=True,
                                   env=os.environ | {"SLUICE_MUTANT": key})
        try:
            return process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None


def build(options, log):
    return run(f"ninja -C {options.build} -k 0 " + " ".join(options.target), 3600, log) == 0


def sources_of(log, build):
    """The sources of the objects that a log of ninja says failed, from ROOT; of those compiled together, all."""
    found = set()
    for name in re.findall(r"^FAILED: (?:\[code=\d+\] )?(\S+)\.o\b", log, re.M):
        if "/Unity/" in name:
            sources = re.findall(r'#include "(.*)"', (build / name).read_text())
            found |= {os.path.relpath(source, ROOT) for source in sources}
        else:
            found.add(re.sub(r"CMakeFiles/[^/]+\.dir/", "", name))
    return found


def build_all(mutants, options):
    """Builds all mutants at once, without the files that do not compile so. Returns those that are in the build."""
    log = CACHE / "all.log"
    log.write_bytes(b"")
    built = apply_all(mutants)
    if not build(options, log):
        failed = sources_of(log.read_text(errors="replace"), ROOT / options.build)
        files = {m.path for m in built if m.path in failed}
        print(f"do not compile with all mutants at once: {' '.join(sorted(files))}", flush=True)
        restore(files)
        built = [m for m in built if m.path not in files]
        if not build(options, log):
            sys.exit(f"the mutants do not build; see {log}")
    return built


def judge(mutant, options):
    log = CACHE / f"{mutant.key}.log"
    log.write_bytes(b"")
    for test in options.test:
        status = run(test, options.limit, log, mutant.key)
        if status != 0:
            return "killed", test + (" (past the limit)" if status is None else "")
    return "survived", ""


def judge_alone(mutant, options):
    apply(mutant)
    if not build(options, CACHE / f"{mutant.key}.log"):
        return "not built", "the change does not compile: what it removes is no ticket or point"
    return judge(mutant, options)


def results_of(path):
    if not path.exists():
        return {}
    return {line.split("\t")[0]: line.split("\t")[1] for line in path.read_text().splitlines()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", nargs="+", metavar="FILE", help="files, from the root of the tree")
    parser.add_argument("--shard", default="1/1", metavar="I/N")
    parser.add_argument("--target", nargs="+", default=[])
    parser.add_argument("--test", nargs="+", default=[], metavar="COMMAND")
    parser.add_argument("--limit", type=float, default=120, metavar="SECONDS", help="of each test command")
    parser.add_argument("--build", default="build")
    parser.add_argument("--results", type=pathlib.Path, default=CACHE / "results.tsv")
    options = parser.parse_args()
    restore()
    mutants = all_mutants(options.only, options.shard)
    known = SURVIVORS.read_text() if SURVIVORS.exists() else ""
    done = results_of(options.results)
    if options.list:
        for mutant in mutants:
            print(mutant, f"[{done[mutant.key]}]" if mutant.key in done else "", "[known survivor]" if mutant.key in known else "")
        print(f"{len(mutants)} mutants")
        return 0
    if not options.target or not options.test:
        parser.error("--target and --test, or --list")
    if not build(options, os.devnull):
        sys.exit("the targets do not build without a mutant")
    for test in options.test:
        if run(test, options.limit, os.devnull) != 0:
            sys.exit(f"{test} fails without a mutant")
    unknown = 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    options.results.parent.mkdir(parents=True, exist_ok=True)
    mutants = [m for m in mutants if m.key not in done]

    def note(mutant, result, why):
        nonlocal unknown
        if result == "survived":
            unknown += mutant.key not in known
            why = "known" if mutant.key in known else "no test notices"
        print(f"{result:9} {mutant}  {why}", flush=True)
        with options.results.open("a") as file:
            file.write(f"{mutant.key}\t{result}\t{mutant}\t{why}\n")

    try:
        built = build_all(mutants, options)
        for mutant in built:
            note(mutant, *judge(mutant, options))
        restore()
        for mutant in mutants:
            if mutant not in built:
                note(mutant, *judge_alone(mutant, options))
                restore()
    finally:
        restore()
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
