"""`sluice data tokenize`: tokens are those of the tokenizer, in bounded memory, and no half file stays."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizing import END, lines, run, tokens


def expected(tokenizer: Path, texts: list[str]) -> list[int]:
    whole = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    end = whole.token_to_id(END)
    return [token for text in texts for token in [*whole.encode(text).ids, end]]


def test_tokens_are_those_of_whole_documents(tokenizer: Path, tmp_path: Path) -> None:
    long, short = lines(1, 40_000), lines(2, 10)  # the first is cut into pieces
    (tmp_path / "b.txt").write_text(long)
    (tmp_path / "c.md").write_text(short)
    rows = [{"text": lines(seed, 3)} for seed in range(3, 6)]
    with gzip.open(tmp_path / "d.jsonl.gz", "wt") as file:
        file.write("\n".join(map(json.dumps, rows)) + "\n")
    (tmp_path / "ignored.png").write_bytes(b"\x89")
    out = tmp_path / "out" / "all.bin"
    out.parent.mkdir()
    result = run(tmp_path, "--tokenizer", tokenizer, "--out", out, "--json")
    assert result.returncode == 0, result.stderr
    texts = [long, short, *(row["text"] for row in rows)]
    assert tokens(out) == expected(tokenizer, texts)
    facts = json.loads(result.stdout)
    assert facts["files"] == [{"path": str(out), "tokens": len(tokens(out)), "documents": 5, "dtype": "uint16"}]
    assert facts["unclear_cuts"] == 0
    assert json.loads((tmp_path / "out" / "all.bin.json").read_text())["end_of_document"] == END
    whole = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    assert whole.decode(tokens(out), skip_special_tokens=True) == "".join(texts)


def test_a_length_and_padding_saved_with_the_tokenizer_change_no_tokens(tokenizer: Path, tmp_path: Path) -> None:
    texts = [lines(1, 20_000), "alpha\n"]  # the first is cut into pieces
    for name, text in zip("ab", texts):
        (tmp_path / f"{name}.txt").write_text(text)
    used = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    used.enable_truncation(max_length=16)
    used.enable_padding(length=16)
    used.save(str(tmp_path / "tokenizer.json"))
    out = tmp_path / "all.bin"
    result = run(tmp_path / "a.txt", tmp_path / "b.txt", "--tokenizer", tmp_path, "--out", out, "--json")
    assert result.returncode == 0, result.stderr
    assert tokens(out) == expected(tokenizer, texts)
    assert json.loads(result.stdout)["unclear_cuts"] == 0


def test_a_tokenizer_that_puts_something_in_front_of_a_text_does_so_once(tmp_path: Path) -> None:
    made = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    parts = tokenizers.normalizers
    made.normalizer = parts.Sequence([parts.Prepend("▁"), parts.Replace(" ", "▁")])  # Llama's
    special = ["<unk>", END, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=700, special_tokens=special, max_token_length=8)
    made.train_from_iterator([line for seed in range(5) for line in lines(seed, 200).split("\n")], trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    text = lines(1, 10_000)  # cut into pieces
    (tmp_path / "a.txt").write_text(text)
    result = run(tmp_path / "a.txt", "--tokenizer", tmp_path, "--out", tmp_path / "a.bin", "--json")
    assert result.returncode == 0, result.stderr
    assert tokens(tmp_path / "a.bin") == expected(tmp_path, [text])
    assert json.loads(result.stdout)["unclear_cuts"] == 0


def test_standard_input_and_tokens_of_32_bits(tokenizer: Path, tmp_path: Path) -> None:
    out = tmp_path / "pipe.u32"
    result = run("-", "--tokenizer", tokenizer / "tokenizer.json", "--out", out, "--no-eod", input="gamma beta\n")
    assert result.returncode == 0, result.stderr
    assert tokens(out) == expected(tokenizer, ["gamma beta\n"])[:-1]
    assert result.stdout.startswith(f"{out}: {len(tokens(out))} tokens of 1 documents")


def test_held_out_documents_are_in_one_file_only(tokenizer: Path, tmp_path: Path) -> None:
    texts = [f"document {number} {lines(number, 1)}" for number in range(200)]
    source = tmp_path / "all.jsonl"
    source.write_text("\n".join(json.dumps({"body": text}) for text in texts))
    courses = []
    for seed in (0, 0, 1):
        out, held = tmp_path / "train.bin", tmp_path / "eval.bin"
        options = ("--held-out", 0.2, "--held-out-file", held, "--seed", seed, "--json-key", "body", "--force")
        result = run(source, "--tokenizer", tokenizer, "--out", out, *options)
        assert result.returncode == 0, result.stderr
        courses.append((out.read_bytes(), held.read_bytes()))
    assert courses[0] == courses[1] != courses[2]
    whole = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    split = [whole.decode(tokens(path), skip_special_tokens=False).split(END)[:-1] for path in (out, held)]
    assert sorted(split[0] + split[1]) == sorted(texts)
    assert 20 <= len(split[1]) <= 60


@pytest.mark.parametrize(("share", "file", "which"), [(0.5, "train.bin", "all are"), (1e-9, "eval.bin", "none is")])
def test_a_file_without_documents_says_why(share: float, file: str, which: str, tokenizer: Path, tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("alpha\n")
    split = ("--held-out", share, "--held-out-file", "eval.bin")
    result = run("a.txt", "b.txt", "--tokenizer", tokenizer, "--out", "train.bin", *split, cwd=tmp_path)
    assert result.returncode == 2
    advice = "another --held-out or --seed may choose others"
    assert result.stderr == f"sluice data: {file}: no token: of 2 documents {which} held out: {advice}\n"


def test_the_program_trains_on_the_tokens(program: Any, config_file: Path, tmp_path: Path) -> None:
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator([lines(1, 100)], vocab_size=300, special_tokens=[END])
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text(lines(1, 500))
    assert run(tmp_path / "a.txt", "--tokenizer", tmp_path, "--out", tmp_path / "a.bin").returncode == 0
    model = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 64, "vocab_size": 300}
    (tmp_path / "model.json").write_text(json.dumps(model))
    data = ("--data", str(tmp_path / "a.bin"))
    result = program.run("train", "--config", str(config_file), "--model", str(tmp_path / "model.json"), *data, "--steps", "2")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.txt"], "nothing.txt: there is no such file or folder"),
        (["latin.txt"], "latin.txt: byte 3 is no UTF-8 text: convert the file first"),
        (["empty.txt"], "out.bin: no token: of 1 documents none has text"),
        (["wrong.jsonl"], "wrong.jsonl:2: no text in 'text' (the line has keys 'content'): --json-key names the key"),
        (["torn.jsonl"], "torn.jsonl:1: no JSON: "),
        (["array.jsonl"], "array.jsonl:1: an array, not an object with the key 'text': remove the line"),
        (["torn.txt.gz"], "torn.txt.gz: no whole gzip file: "),
        (["good.txt", "--out", "out.tokens"], "out.tokens: token files end in .bin (16-bit tokens) or .u32 (32-bit tokens)"),
        (["good.txt", "--out", "there.bin"], "there.bin: the file is there already: --force replaces it"),
        (["good.txt", "--eod", "<stop>"], "the tokenizer has no token '<stop>'"),
        (["good.txt", "--tokenizer", "good.txt"], "good.txt: no tokenizer: "),
        (["good.txt", "--held-out", "0.1"], "--held-out and --held-out-file go together"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("alpha\n")
    (tmp_path / "latin.txt").write_bytes(b"abc\xe9\n")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "wrong.jsonl").write_text('{"text": "a"}\n{"content": "b"}\n')
    (tmp_path / "torn.jsonl").write_text('{"text": ')
    (tmp_path / "array.jsonl").write_text('["a"]\n')
    (tmp_path / "torn.txt.gz").write_bytes(gzip.compress(b"alpha " * 1000)[:40])
    (tmp_path / "there.bin").write_bytes(b"kept")
    given = [*arguments]
    for flag, value in (("--tokenizer", tokenizer), ("--out", "out.bin")):
        if flag not in given:
            given += [flag, str(value)]
    before = sorted(tmp_path.iterdir())
    result = run(*given, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("sluice data: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "there.bin").read_bytes() == b"kept"


@pytest.mark.parametrize(
    ("arguments", "message", "exit_code"),
    [
        (["nothing.txt", "--out", "out.bin"], "nothing.txt: there is no such file or folder", 2),
        (["good.txt", "--out", "no/folder/out.bin"], "no/folder/out.bin: No such file or directory", 4),
        (["good.txt"], "the following arguments are required: --out", 2),
        (["good.txt", "--out", "out.bin", "--threads", "many"], "argument --threads: invalid int value: 'many'", 2),
    ],
)
def test_with_json_a_failure_is_an_object_too(
    arguments: list[str], message: str, exit_code: int, tokenizer: Path, tmp_path: Path
) -> None:
    (tmp_path / "good.txt").write_text("alpha\n")
    result = run(*arguments, "--tokenizer", tokenizer, "--json", cwd=tmp_path)
    assert result.returncode == exit_code
    assert json.loads(result.stdout) == {"error": message, "exit_code": exit_code}
    assert f"sluice data: {message}\n" in result.stderr


def interrupt(process: subprocess.Popen[Any]) -> None:
    """As a user does, again where nothing happens: Python does not see a signal just before a read that waits for data."""
    for _ in range(30):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=2)
            return


def test_with_json_an_interruption_is_an_object_too(tokenizer: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "endless.txt")
    command = [sys.executable, "-m", "sluice", "data", "tokenize", str(tmp_path / "endless.txt"), "--json"]
    process = subprocess.Popen(
        [*command, "--tokenizer", str(tokenizer), "--out", str(tmp_path / "a.bin")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with open(tmp_path / "endless.txt", "w") as pipe:  # which waits for the command to open it
        pipe.write(lines(1, 30_000))
        pipe.flush()
        interrupt(process)
        out, _ = process.communicate(timeout=60)
    assert json.loads(out) == {"error": "interrupted; no file was written", "exit_code": 130}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (r'{"text": "\ud800"}', "half of a surrogate pair, '\\ud800', is no character"),
        ("[" * 100_000, "nested too deeply"),
        ("{}", "an object without keys: remove the line"),
        ('{"text": null}', "the value of 'text' is null, not a string: remove the line, or name another key with --json-key"),
        ('{"text": 5}', "the value of 'text' is a number, not a string: "),
        ('{"text": ["a"]}', "the value of 'text' is an array, not a string: "),
    ],
)
def test_a_line_that_is_no_text_is_named(text: str, message: str, tokenizer: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "a"}\n' + text + "\n")
    result = run(source, "--tokenizer", tokenizer, "--out", tmp_path / "a.bin", "--json")
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert f"{source}:2: " in result.stderr and message in result.stderr
    assert json.loads(result.stdout)["exit_code"] == 2


def test_a_long_number_beside_the_text_is_no_mistake(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "v": ' + "9" * 10_000 + "}\n")
    result = run("a.jsonl", "--tokenizer", tokenizer, "--out", "a.bin", cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_an_input_is_not_replaced(tokenizer: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.bin"
    source.write_text("precious")
    result = run(source, "--tokenizer", tokenizer, "--out", tmp_path / "." / "a.bin", "--force")
    assert result.returncode == 2 and "is an input too" in result.stderr
    assert source.read_text() == "precious"


def test_a_device_is_no_text(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").symlink_to("/dev/zero")
    result = run(tmp_path / "a.txt", "--tokenizer", tokenizer, "--out", tmp_path / "a.bin")
    assert result.returncode == 2 and "a device, not a file" in result.stderr


@pytest.mark.parametrize("arguments", [["--json"], [], ["--help"]])
def test_standard_output_that_is_full_is_an_error(arguments: list[str], tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha")
    command = [sys.executable, "-m", "sluice", "data", "tokenize", tmp_path / "a.txt", "--tokenizer", tokenizer, "--out", tmp_path / "a.bin"]
    with open("/dev/full", "w") as full:
        result = subprocess.run([*map(str, command), *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (4, "sluice data: standard output: write: No space left on device\n")


def test_closed_streams_do_not_stop_the_work(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha")
    command = [sys.executable, "-m", "sluice", "data", "tokenize", tmp_path / "a.txt", "--tokenizer", tokenizer, "--out", tmp_path / "a.bin"]
    result = subprocess.run(["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "-", *map(str, command)], timeout=60)
    assert result.returncode == 0
    assert tokens(tmp_path / "a.bin")


def test_a_vocabulary_beyond_16_bits_asks_for_u32(tmp_path: Path) -> None:
    words = {f"w{number}": number for number in range(65_537)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text("w65536 w1")
    refused = run(tmp_path / "a.txt", "--tokenizer", tmp_path, "--out", tmp_path / "a.bin", "--no-eod")
    assert refused.returncode == 2
    assert "65,537 tokens need 32 bits: name it a.u32" in refused.stderr
    taken = run(tmp_path / "a.txt", "--tokenizer", tmp_path, "--out", tmp_path / "a.u32", "--no-eod")
    assert taken.returncode == 0, taken.stderr
    assert tokens(tmp_path / "a.u32") == [65_536, 1]


def test_a_full_drive_leaves_nothing(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(lines(1, 60_000))
    before = sorted(tmp_path.iterdir())
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))  # noqa: E731
    result = run(tmp_path / "a.txt", "--tokenizer", tokenizer, "--out", tmp_path / "a.bin", preexec_fn=limit)
    assert result.returncode == 4
    assert f"{tmp_path / 'a.bin'}: File too large" in result.stderr
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_signal_leaves_no_half_file(number: signal.Signals, exit_code: int, tokenizer: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "endless.txt")
    out = tmp_path / "a.bin"
    command = [sys.executable, "-m", "sluice", "data", "tokenize", str(tmp_path / "endless.txt")]
    process = subprocess.Popen([*command, "--tokenizer", str(tokenizer), "--out", str(out)], stderr=subprocess.PIPE)
    with open(tmp_path / "endless.txt", "w") as pipe:
        pipe.write(lines(1, 30_000))
        pipe.flush()
        time.sleep(0.5)
        process.send_signal(number)
        process.wait(timeout=60)
    assert process.returncode == exit_code
    assert not out.exists()
    assert number == signal.SIGKILL or list(tmp_path.glob(".a.bin*")) == []


def test_memory_does_not_grow_with_the_text(tokenizer: Path, tmp_path: Path) -> None:
    peaks = []
    text = lines(1, 20_000)
    for copies in (2, 40):
        source = tmp_path / "a.txt"
        source.write_text(text * copies)
        run_and_measure = (
            "import resource, sys; from sluice._data.command import main; code = main(sys.argv[1:]); "
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024); sys.exit(code)"
        )
        arguments = ["tokenize", source, "--tokenizer", tokenizer, "--out", tmp_path / "a.bin", "--force"]
        result = subprocess.run(
            [sys.executable, "-c", run_and_measure, *map(str, arguments)], capture_output=True, text=True, check=True
        )
        peaks.append(int(result.stdout.split()[-1]))
    assert source.stat().st_size > 40 << 20
    assert peaks[1] - peaks[0] < 40 << 20
