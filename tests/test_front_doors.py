"""Chapter 21, Front doors: the command line as a shell sees it; the file as book and as copy."""
import ast
import errno
import io
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

import kshipra
import tiny
from kshipra import KshipraError

FILE = pathlib.Path(kshipra.__file__).resolve()
EXPECTED = json.loads((FILE.parent / "tests" / "demo_expected.json").read_text(encoding="utf-8"))
SOURCE = FILE.read_text(encoding="utf-8")
POSIX = pytest.mark.skipif(os.name != "posix", reason="POSIX only")


def run(*arguments, env=(), flags=(), **options):
    """Run the file as a script; return the finished process, output as bytes."""
    return subprocess.run([sys.executable, *flags, str(FILE), *map(str, arguments)],
                          env={**os.environ, **dict(env)}, timeout=120,
                          **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options})


def one_line(stderr):
    """Return the message of a refusal after checking its form."""
    text = stderr.decode("utf-8", "replace")
    assert text.startswith("kshipra: ") and text.endswith("\n") and text.count("\n") == 1, text
    return text


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return tiny.write(tmp_path_factory.mktemp("small") / "tiny.gguf", n_layers=1)


# The file as a copy: nothing else is needed.

def test_imports_are_of_the_standard_library():
    names = getattr(sys, "stdlib_module_names", None)
    if names is None:
        pytest.skip("sys.stdlib_module_names came with Python 3.10")
    for node in ast.walk(ast.parse(SOURCE)):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else \
            [node.module] if isinstance(node, ast.ImportFrom) else []
        for module in modules:
            assert module.split(".")[0] in names or module == "kshipra_cuda", module


def test_the_oldest_python_can_parse_it():
    ast.parse(SOURCE, feature_version=(3, 9))


def test_no_path_of_anyones_machine():
    places = ["/" + name + "/" for name in ("root", "home", "work", "Users", "mnt")]
    for line, text in enumerate(SOURCE.split("\n"), 1):
        assert not any(place in text for place in places), (line, text[:200])


def test_no_line_is_longer_than_99_columns():
    """But those of packed data: so many letters of base 85 without a space."""
    for path in [FILE, FILE.parent / "bench.py", *sorted(FILE.parent.glob("tests/*.py"))]:
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            packed = re.fullmatch(r' *"?[!-~]{90,100}"?', line)
            assert len(line) <= 99 or packed, f"{path.name}:{number}"


def test_the_map_is_the_territory():
    """The chapters in the docstring are the banners, in order."""
    ruler = "# " + "-" * 87 + "\n"
    banners = re.findall(re.escape(ruler) + r"# (\d+\. .+)\n", SOURCE)
    assert re.findall(r"^ {4}(\d+\. .+)$", kshipra.__doc__, re.M) == banners
    assert len(banners) >= 18


def test_it_runs_isolated_and_without_site():
    done = run("--help", flags=("-I", "-S"))
    assert done.returncode == 0 and b"--prompt" in done.stdout and not done.stderr


def test_importing_is_quick_and_quiet(tmp_path):
    """Under 120 ms from its bytecode, best of five; no thread, no output, no foreign module."""
    script = ("import sys, time, threading; begun = time.process_time(); import kshipra; "
              "took = time.process_time() - begun; assert threading.active_count() == 1; "
              "print(took, 'http' in sys.modules, 'unittest' in sys.modules)")
    environment = {**os.environ, "PYTHONPATH": str(FILE.parent),
                   "PYTHONPYCACHEPREFIX": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    best = 1e9
    for _ in range(6):
        done = subprocess.run([sys.executable, "-c", script], env=environment, check=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        took, http, unittest = done.stdout.decode().split()
        best = min(best, float(took))
        assert http == unittest == "False" and not done.stderr
    assert best < 0.120


# What a shell sees.

def test_a_prompt_is_continued():
    done = run("--prompt", "Once upon a time", "--temp", "0", "-n", "12")
    assert done.returncode == 0 and not done.stderr
    model = kshipra.load()
    text = "".join(model.generate("Once upon a time", max_tokens=12, temperature=0))
    assert done.stdout.decode() == "Once upon a time" + text + "\n"


def test_json():
    done = run("-p", "The river", "-n", "9", "--json", "--seed", "3", "--ignore-eos")
    assert done.returncode == 0 and done.stdout.count(b"\n") == 1
    told = json.loads(done.stdout)
    assert set(told) >= {"text", "tokens", "prompt_tokens", "finish_reason", "timings", "rss_mb",
                         "device", "isa", "threads"}
    assert set(told["timings"]) == {"load_s", "ttft_s", "prefill_tok_s", "decode_tok_s"}
    assert len(told["tokens"]) == 9 and told["finish_reason"] == "length"
    model = kshipra.load()
    assert told["prompt_tokens"] == len(model.tokenizer.encode("The river"))
    assert told["tokens"] == list(model.generate_ids("The river", max_tokens=9, seed=3,
                                                     ignore_eos=True))
    assert told["text"] == model.tokenizer.decode(told["tokens"])
    assert all(told["timings"].values()) and told["rss_mb"] > 1


def test_memory_is_that_of_the_process(small):
    """Not that of the process which started it, though Linux lets a child inherit the peak."""
    held = bytearray(b"\1") * 400_000_000
    told = json.loads(run("-m", small, "-p", "a", "-n", "1", "--json").stdout)
    assert told["rss_mb"] is None or 1 < told["rss_mb"] < len(held) / 2e6


def test_json_of_no_tokens(small):
    told = json.loads(run("-m", small, "-p", "a", "-n", "0", "--json").stdout)
    assert told["text"] == "" and told["tokens"] == [] and told["finish_reason"] == "length"


def test_stop_and_limits(small):
    done = run("-p", "Once upon a time", "--temp", "0", "--stop", " clever", "-n", "40", "--json")
    told = json.loads(done.stdout)
    assert told["finish_reason"] == "stop" and told["text"] == ", there was a"
    for limit, words in (("-2", b"--max-tokens is -2"), ("-5", b"--max-tokens is -5")):
        done = run("-m", small, "-p", "a", "-n", limit)
        assert done.returncode == 1 and words in done.stderr
    told = json.loads(run("-m", small, "-p", "a", "-n", "-1", "-c", "20", "--json",
                          "--ignore-eos").stdout)
    assert len(told["tokens"]) == 19            # <s>, a, and 18 more that fit; 1 beyond


def test_a_context_that_is_full_is_said_once(small):
    """Fewer tokens than were asked for, and why; not where as many as fit were asked for."""
    done = run("-m", small, "-p", "a", "-n", "50", "-c", "20", "--ignore-eos")
    assert done.returncode == 0 and "context of 20 positions is full" in one_line(done.stderr)
    for n in ("-1", "19"):
        assert not run("-m", small, "-p", "a", "-n", n, "-c", "20", "--ignore-eos").stderr


def test_a_profile_reads_the_prompt_as_a_generation_does(small):
    """P18: text that spells the beginning token gets no second one; -n means what it means."""
    done = run("-m", small, "-p", "<s>a", "-n", "3", "--profile")
    assert done.returncode == 0 and b"prefill, 2 tokens" in done.stdout, done
    assert b"decode, 3 tokens" in done.stdout and b" kB" in done.stdout
    done = run("-m", small, "-p", "a", "-n", "-5", "--profile")
    assert done.returncode == 1 and "--max-tokens is -5" in one_line(done.stderr)


def test_a_prompt_longer_than_the_context_is_refused_with_numbers(small):
    """P27: never cut silently."""
    done = run("-m", small, "-p", "x" * 30, "-c", "20")
    assert done.returncode == 1 and not done.stdout
    assert "31 tokens but the context holds 20" in one_line(done.stderr)


@pytest.mark.parametrize("arguments, words", [
    (["-m", "no/such.gguf"], "no/such.gguf: no such file"),
    (["-m", "no/such.safetensors"], "no such file"),
    (["-m", "."], "config.json"),
    (["-m", "a\nb.gguf"], "no such file"),
    (["--temp", "-1"], "temperature is -1.0"), (["--temp", "nan"], "temperature is nan"),
    (["--top-k", "-3"], "--top-k is -3"), (["--top-p", "1.5"], "--top-p is 1.5"),
    (["--min-p", "-0.5"], "--min-p is -0.5"),
    (["--repeat-penalty", "0"], "--repeat-penalty is 0.0"),
    (["-c", "0"], "--ctx-size is 0"), (["-c", "-8"], "--ctx-size is -8"),
    (["-c", "1000000000000"], "--ctx-size is 1000000000000"),
    (["-c", "2000000000"], "--ctx-size"),
    (["--page-size", "0"], "--page-size is 0"), (["--page-size", "12"], "--page-size is 12"),
    (["-t", "0"], "threads is 0"), (["--stop", ""], "stop string is empty"),
    (["--seed", "-7"], "seed is -7"), (["-m", ""], "kshipra: '': no such file"),
])
def test_bad_input_is_one_line_and_status_1(arguments, words):
    done = run("-p", "a", "-n", "1", *arguments)
    assert done.returncode == 1, done
    assert words in one_line(done.stderr)


@pytest.mark.parametrize("arguments", [
    ["-m", "x.gguf"], ["--no-such"],
    ["-p"], ["-p", "a", "-n", "many"], ["-p", "a", "--device", "tpu"],
    ["-p", "a", "--kv-type", "q9"], ["-p", "a", "--seed", "x"], ["--info", "--json"],
    ["-p", "a", "--profile", "--json"], ["--info", "--listing", "q4_0"],
    ["a", "-p", "b"], ["-p", "a", "-f", "b"], ["-p", "-n", "5"], ["--info", "-p", "a"],
    ["--info", "--temp", "0"], ["--listing", "q4_0", "-m", "x.gguf"], ["--version", "-n", "5"],
    ["-p", "a", "--profile", "--stop", "b"], ["-p", "a", "--profile", "--top-k", "5"],
    ["a", "b"]])
def test_wrong_usage_is_status_2(arguments):
    done = run(*arguments)
    assert done.returncode == 2 and not done.stdout
    assert b"usage: " in done.stderr and b"Traceback" not in done.stderr


def test_options_are_those_of_the_api(small):
    """Each road through the command line gives what the call gives."""
    model = kshipra.load(small, kv_type="f32", page_size=8)
    want = "".join(model.generate("ab", max_tokens=8, temperature=1.5, top_k=20, top_p=0.9,
                                  min_p=0.01, repeat_penalty=1.2, seed=9))
    done = run("-m", small, "--prompt", "ab", "--max-tokens", "8", "--temperature", "1.5",
               "--top-k", "20", "--top-p", "0.9", "--min-p", "0.01", "--repeat-penalty", "1.2",
               "--seed", "9", "--kv-type", "f32", "--page-size", "8", "--json")
    assert json.loads(done.stdout)["text"] == want
    assert run("-m", small, "-p", "ab", "-n", "3", "--seed", "1", "--paged-cache").returncode == 0


def test_seed_minus_1_is_a_new_one_each_time(small):
    """As in llama.cpp."""
    texts = {json.loads(run("-m", small, "-p", "a", "-n", "40", "--ignore-eos", "--temp", "2",
                            "--json", "--seed", seed).stdout)["text"]
             for seed in ("-1", "-1", "1")}
    assert len(texts) == 3


# --info.

def test_info_lists_and_plans_in_two_seconds(small):
    begun = sum(os.times()[2:4])                # processor time of children: the clock of a
    done = run("-m", small, "--info", "-c", "200")
    assert sum(os.times()[2:4]) - begun < 2     # busy machine tells little
    text = done.stdout.decode()
    assert done.returncode == 0 and not done.stderr
    for words in ("general.architecture = 'llama'", "blk.0.attn_q.weight", "(32, 32)", "KV cache",
                  "200 positions of 64 bytes", "weights", "scratch", "together", "tensors   12"):
        assert words in text, words
    assert run("--info").returncode == 0        # the model in the file


@pytest.mark.parametrize("apart", [False, True])
def test_info_tells_what_a_token_reads_of_the_experts(tmp_path, apart):
    """Three matrices of (64, 32) in each of 8 experts, two layers; 3 experts are used."""
    path = tiny.write(tmp_path / "tiny.gguf", "mixtral", n_experts=8, n_used=3)
    checkpoint = kshipra.GGUF(path)
    if apart:
        kshipra.write_gguf(path, checkpoint.metadata, [
            kshipra.Tensor(t.name.replace("_exps", f".{i}"), t.format, part.shape, part.data)
            for t in checkpoint.tensors.values()
            for i, part in ([(0, t)] if len(t.shape) < 3 else enumerate(t[e] for e in range(8)))])
    all_bytes = sum(t.n_bytes for t in checkpoint.tensors.values())
    read = all_bytes - 2 * 3 * 5 * 4 * 64 * 32
    text = run("-m", path, "--info").stdout.decode()
    assert "llama.expert_count = 8" in text
    assert f"3 of 8 in each layer for a token, which so reads {kshipra.count(read, 'B')}" in text


def test_info_tells_what_it_can_of_what_is_not_supported(tmp_path, malformed):
    path = tiny.write(tmp_path / "x.gguf",
                      change=lambda numbers, _: numbers.update({"general.architecture": "mamba"}))
    done = run("-m", path, "--info")
    assert done.returncode == 1 and b"blk.0.attn_q.weight" in done.stdout
    assert "architecture 'mamba'" in one_line(done.stderr)
    done = run("-m", malformed / "good.safetensors", "--info")
    assert done.returncode == 0 and b"c.weight" in done.stdout
    done = run("-m", malformed / "good-hf", "--info")
    assert done.returncode == 0 and b"model.embed_tokens.weight" in done.stdout


def test_a_safetensors_path_is_that_file(tmp_path, malformed):
    shutil.copytree(malformed / "good-hf", tmp_path / "hf")
    shutil.copy(malformed / "good.safetensors", tmp_path / "hf" / "other.safetensors")
    shard = tmp_path / "hf" / "model-00001-of-00002.safetensors"
    assert run("-m", shard, "-p", "a", "-n", "1").returncode == 0
    done = run("-m", tmp_path / "hf" / "other.safetensors", "-p", "a")
    assert done.returncode == 1 and "not among the files" in one_line(done.stderr)


# P32: the edge of the operating system.

@pytest.mark.parametrize("environment", [
    {"PYTHONIOENCODING": "cp1252"}, {"PYTHONIOENCODING": "ascii"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"LC_ALL": "C"}, {}],
    ids=lambda e: "-".join(f"{k}={v}" for k, v in e.items()) or "as it is")
def test_any_path_and_any_console(tmp_path, small, environment):
    """What the console cannot show is marked, and nothing is taken for a failure."""
    directory = tmp_path / "модель 😀 dir"
    directory.mkdir()
    path = directory / "модель.gguf"
    shutil.copy(small, path)
    done = run("-m", path, "-p", "naïve 😀", "-n", "3", "--temp", "0", "--ignore-eos",
               env=environment)
    assert done.returncode == 0 and not done.stderr, done
    assert done.stdout.startswith(b"na") and b"ve " in done.stdout
    told = run("-m", path, "-p", "naïve 😀", "-n", "3", "--temp", "0", "--ignore-eos", "--json",
               env=environment)
    # <s>, and the bytes of the prompt as it was typed
    assert json.loads(told.stdout)["prompt_tokens"] == 1 + len("naïve 😀".encode())
    done = run("-m", directory / "нет.gguf", "-p", "a", env=environment)
    assert done.returncode == 1 and "no such file" in one_line(done.stderr)
    told = json.loads(run("-m", path, "-p", "é", "-n", "9", "--temp", "0", "--stop", "é", "--json",
                          env=environment).stdout)
    assert "é" not in told["text"]


@POSIX
@pytest.mark.parametrize("arguments", [["-p", "Once upon a time", "-n", "200", "--ignore-eos"],
                                       ["--help"], ["--info"]])
def test_a_reader_that_leaves_early_is_no_error(arguments):
    for size in (0, 5):
        process = subprocess.Popen([sys.executable, str(FILE), *arguments],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.read(size)
        process.stdout.close()
        stderr = process.stderr.read()
        process.stderr.close()
        assert process.wait(60) == 0 and stderr == b"", stderr


@POSIX
def test_output_that_cannot_be_written():
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with open("/dev/full", "wb") as full:
        done = run("-p", "The river", "-n", "5", stdout=full)
    assert done.returncode == 1 and "cannot be written: No space left" in one_line(done.stderr)


@POSIX
def test_a_closed_output_is_no_error():
    done = subprocess.run(["sh", "-c", '"$0" "$1" -p "The river" -n 5 >&-', sys.executable,
                           str(FILE)], stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 0 and not done.stderr


@POSIX
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_ctrl_c_keeps_what_was_written(more):
    process = subprocess.Popen([sys.executable, "-u", str(FILE), "-p", "Once upon a time", "-n",
                                "-1", "--ignore-eos", "--device", "python", "--temp", "0", *more],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if more:
        time.sleep(2.5)
        begun = b""
    else:
        begun = process.stdout.read(40)
    process.send_signal(signal.SIGINT)
    rest, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and not stderr, stderr
    text = (begun + rest).decode()
    assert text.endswith("\n")
    if more:
        told = json.loads(text)
        assert told["finish_reason"] == "interrupted" and told["text"].startswith(", there was")
    else:
        whole = "Once upon a time" + EXPECTED["prompts"][0]["text"]
        assert len(text) > 40 and (whole.startswith(text[:-1]) or text.startswith(whole))


@POSIX
def test_progress_shows_on_a_terminal_only(tmp_path):
    import pty
    path = tiny.write(tmp_path / "tiny.gguf", n_layers=1, n_ctx=1024)
    inner, outer = pty.openpty()
    done = run("-m", path, "-p", "x" * 100, "-n", "2", "--device", "python", stderr=outer)
    os.close(outer)
    shown = os.read(inner, 1 << 16).decode()
    os.close(inner)
    assert done.returncode == 0
    assert "reading the prompt: 64 of 101 tokens" in shown and "\r\x1b[Kkshipra: load" in shown
    assert not run("-m", path, "-p", "x" * 100, "-n", "2").stderr


@POSIX
def test_timings_show_on_a_terminal_behind_the_text(small):
    import pty
    inner, outer = pty.openpty()
    done = run("-m", small, "-p", "ab", "-n", "3", "--ignore-eos", stderr=outer)
    os.close(outer)
    shown = os.read(inner, 1 << 16).decode()
    os.close(inner)
    assert done.returncode == 0 and done.stdout.startswith(b"ab")
    assert re.search(r"kshipra: load .*s; prompt 3 tokens, .*s, .*/s; text 3 tokens, .*s, "
                     r".*/s\r\n", shown), shown


def test_no_arguments_tell_a_story_and_name_help():
    done = run()
    assert done.returncode == 0 and done.stdout.startswith(b"Once upon a time")
    assert len(done.stdout) > 100 and "--help" in one_line(done.stderr)
    assert not run("-n", "2").stderr            # whoever knows an option knows of --help


def test_version_and_help():
    done = run("--version")
    assert done.returncode == 0 and not done.stderr
    assert done.stdout.decode().startswith(f"kshipra {kshipra.__version__}, Python 3.")
    text = run("--help").stdout.decode()
    assert "examples:" in text and "how to choose:" in text


def test_a_prompt_comes_from_four_places(small, tmp_path):
    (tmp_path / "p.txt").write_bytes("\ufeffab é\r\n".encode("utf-8"))
    roads = [(["ab é"], None), (["-p", "ab é"], None), (["-f", tmp_path / "p.txt"], None),
             (["-p", "-"], "ab é\n"), (["-"], "ab é"), (["--", "ab é"], None)]
    said = {run("-m", small, "-n", "5", "--temp", "0", *words,
                input=(text or "").encode()).stdout
            for words, text in roads}
    assert len(said) == 1 and said.pop().startswith("ab é".encode())
    (tmp_path / "bad.txt").write_bytes(b"ab\xff")
    for words, message in ((["-f", tmp_path / "none.txt"], "none.txt"),
                           (["-f", tmp_path / "bad.txt"], "byte 0x2: a prompt is not UTF-8"),
                           (["-f", tmp_path], "directory")):
        done = run("-m", small, *words)
        assert done.returncode == 1 and message in one_line(done.stderr)


@pytest.mark.parametrize("words, text", [
    (["-p", "-abc"], "-abc"), (["--prompt", "--x y"], "--x y"), (["-p", "-5"], "-5"),
    (["--", "-abc"], "-abc"), (["--prompt=-n"], "-n")])
def test_u9_a_prompt_may_begin_with_a_dash(small, words, text):
    done = run("-m", small, "-n", "1", *words)
    assert done.returncode == 0 and done.stdout.decode().startswith(text), done


def test_the_name_of_a_model_on_a_hub_is_no_path():
    done = run("-m", "owner/name", "-p", "a")
    assert done.returncode == 1 and "model on a hub, fetch its GGUF file" in one_line(done.stderr)


@POSIX
@pytest.mark.parametrize("closing", ["2>&-", ">&-", "<&-", ">&- 2>&- <&-"])
def test_r15_closed_streams_are_no_error(closing, small, tmp_path):
    """Nor does anything written go to a file that took the place of a stream."""
    done = subprocess.run(["sh", "-c", f'"$0" "$@" {closing}', sys.executable, str(FILE), "-m",
                           small, "-p", "ab", "-n", "3", "-c", "600", "--temp", "0"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 0, done
    assert done.stdout.startswith(b"ab") or ">&- " in closing + " " and closing != "2>&-"
    assert b"ctx_size is 600" in done.stderr or "2>&-" in closing
    done = subprocess.run(["sh", "-c", f'"$0" "$@" {closing}', sys.executable, str(FILE), "--no"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 2 and not done.stdout


@POSIX
def test_r21_all_of_it_goes_to_a_pipe_that_does_not_wait():
    import fcntl
    inner, outer = os.pipe()
    os.set_blocking(outer, False)
    if sys.platform == "linux":
        fcntl.fcntl(outer, 1031, 4096)    # F_SETPIPE_SZ
    process = subprocess.Popen([sys.executable, str(FILE), "--listing", "q4_k"], stdout=outer,
                               stderr=subprocess.PIPE)
    os.close(outer)
    time.sleep(1)
    data = b""
    while True:
        part = os.read(inner, 4096)
        if not part:
            break
        data += part
    os.close(inner)
    assert process.wait(60) == 0 and not process.stderr.read()
    process.stderr.close()
    assert data.decode() == kshipra.kernel_listing("q4_k") + "\n"


def test_u15_a_python_without_ctypes_computes_in_plain_python(small):
    code = ("import sys; sys.modules['_ctypes'] = None; sys.path.insert(0, sys.argv.pop(1)); "
            "import kshipra; sys.exit(kshipra.main())")
    done = subprocess.run([sys.executable, "-c", code, str(FILE.parent), "-m", small, "-p", "ab",
                           "-n", "5", "--temp", "0"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 0 and "no ctypes" in one_line(done.stderr)
    assert done.stdout == run("-m", small, "-p", "ab", "-n", "5", "--temp", "0").stdout


# In process.

def test_main_leaves_the_hosts_streams_alone(small, capfd, monkeypatch):
    """B9: a host's stdout is its own, whatever goes wrong; an OSError is called what it is."""
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")
    full = Full()
    monkeypatch.setattr(sys, "stdout", full)
    assert kshipra.main(["-m", small, "-p", "a", "-n", "1"]) == 1
    assert sys.stdout is full
    assert capfd.readouterr().err == \
        "kshipra: the output cannot be written: No space left on device\n"

    def gone(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", "some.file")
    for text in (io.StringIO(), None):
        monkeypatch.setattr(sys, "stdout", text)
        assert kshipra.main(["-m", small, "-p", "a", "-n", "1"]) == 0 and sys.stdout is text
        with monkeypatch.context() as patch:
            patch.setattr(kshipra, "load", gone)
            assert kshipra.main(["-m", small, "-p", "a"]) == 1 and sys.stdout is text
        err = capfd.readouterr().err
        assert "Permission denied: 'some.file'" in err and "output" not in err
    os.write(1, b"the host goes on")
    assert capfd.readouterr().out == "the host goes on"


def test_main_returns_the_status(small, capsys):
    assert kshipra.main(["-m", small, "-p", "a", "-n", "2", "--temp", "0"]) == 0
    assert capsys.readouterr().out.startswith("a")
    assert kshipra.main(["-m", small + "x", "-p", "a"]) == 1
    assert capsys.readouterr().err.startswith("kshipra: ")
    with pytest.raises(SystemExit) as caught:
        kshipra.main(["--no-such"])
    assert caught.value.code == 2


def test_memory_that_runs_out_is_one_line(small, capsys, monkeypatch):
    def no_memory(*_):
        raise MemoryError
    monkeypatch.setattr(kshipra, "load", no_memory)
    assert kshipra.main(["-m", small, "-p", "a"]) == 1
    assert capsys.readouterr().err == \
        "kshipra: not enough memory; use a smaller model or --ctx-size\n"


@pytest.mark.parametrize("options, words", [
    ({"device": "abacus"}, "device 'abacus'"), ({"kv_type": "q9"}, "kv_type 'q9'"),
    ({"threads": 0}, "threads is 0"), ({"ctx_size": 0}, "ctx_size is 0"),
    ({"page_size": 9}, "page_size is 9"), ({"ctx_size": "64"}, "ctx_size is '64'"),
    ({"ctx_size": 100.5}, "ctx_size is 100.5"), ({"ctx_size": True}, "ctx_size is True"),
    ({"threads": 2.7}, "threads is 2.7"), ({"threads": math.inf}, "threads is inf"),
    ({"threads": "2"}, "threads is '2'"), ({"page_size": "8"}, "page_size is '8'"),
    ({"kv_type": []}, r"kv_type \[\]"), ({"device": None}, "device None"),
    ({"ctx_size": 10 ** 5000}, "ctx_size is a number of 16610 bits")])
def test_load_refuses_by_name(small, options, words):
    with pytest.raises(KshipraError, match=words):
        kshipra.load(small, **options)


# Malformed files, through the real command line.

# Runs command lines from a small process: the peak of a child begins at its parent's, and
# the one that runs the tests may have grown.  -> [[status, stderr, seconds, peak in MB], ...]
WATCH = """
import concurrent.futures, json, os, subprocess, sys

def watch(command):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    with process.stderr:
        stderr = process.stderr.read().decode("utf-8", "replace")
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1
    peak_mb = usage.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    return process.returncode, stderr, usage.ru_utime + usage.ru_stime, peak_mb

with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    json.dump(list(pool.map(watch, json.load(sys.stdin))), sys.stdout)
"""


@POSIX
@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.deep)])
def test_malformed_files_as_a_shell_sees_them(malformed, step):
    """One line and status 1, or a text; 1 s of processor and 100 MB from the process's start."""
    def command(case):
        info = case["file"].endswith(".safetensors")    # no model, but a file that can be listed
        return [sys.executable, str(FILE), "-m", str(malformed / case["file"])] + (
            ["--info"] if info else ["-p", "a", "-n", "1", "--device", "python"])

    def is_right(case, status, stderr, took_s, peak_mb):    # not the clock: others may be busy
        expect, names = case.get("expect", "load"), case.get("error_names_one_of")
        warned = re.sub(r"^kshipra: not known here, so not heeded: .*\n", "", stderr, count=1)
        fine = not warned if status == 0 else status == 1 and stderr.startswith("kshipra: ") \
            and stderr.count("\n") == 1
        fine &= expect == "either" or status == (1 if expect == "refuse" else 0)
        if status and names:
            fine &= any(name.lower() in stderr.lower() for name in names)
        return fine and took_s <= 1 and peak_mb <= 100

    manifest = json.loads((malformed / "manifest.json").read_text())
    cases = (manifest["cases"] + manifest["good"])[::step]
    watched = subprocess.run([sys.executable, "-c", WATCH], stdout=subprocess.PIPE, check=True,
                             input=json.dumps(list(map(command, cases))).encode())
    wrong = [(case["file"], case.get("expect"), *found)
             for case, found in zip(cases, json.loads(watched.stdout))
             if not is_right(case, *found)]
    assert len(cases) * step > 30 and not wrong, "\n".join(map(str, wrong))


def test_good_files_give_their_first_logits(malformed, device):
    for good in json.loads((malformed / "manifest.json").read_text())["good"]:
        if "ids" in good:
            model = kshipra.load(malformed / good["file"], device=device, kv_type="f32")
            row = model.logits(good["ids"])[-1]
            assert row.index(max(row)) == good["argmax"]
            assert list(row[:8]) == pytest.approx(good["first_8_logits"], abs=1e-4)


def test_dir_shows_what_a_user_may_import():
    shown = [name for name in dir(kshipra) if not name.startswith("__")]
    assert sorted(shown) == sorted(kshipra.__all__) and all(hasattr(kshipra, n) for n in shown)
    assert {"Model", "Generation", "Sampler", "Tokenizer", "Format", "Engine",
            "Sequence"} <= set(shown)


def test_r15_a_host_that_closed_its_streams_or_replaced_them(monkeypatch, capsys):
    """What would be said is not said; a prompt is read from whatever stands for standard input."""
    closed = io.StringIO()
    closed.close()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", closed)
        kshipra.warn("nobody listens")
        assert len(kshipra.load(device="python", ctx_size=3000).logits([1, 2])) == 2
    monkeypatch.setattr(sys, "stdin", io.StringIO("Once upon a time"))
    assert kshipra.main(["-p", "-", "-n", "4", "--temp", "0"]) == 0
    monkeypatch.setattr(sys, "stdin", None)
    assert capsys.readouterr().out.startswith("Once upon a time, there was")
    assert kshipra.main(["-p", "-", "-n", "4", "--temp", "0"]) == 0


@pytest.mark.deep
@pytest.mark.skipif(sys.platform != "linux", reason="the limits of Linux")
def test_any_limit_of_memory_is_one_line():
    """F11: of address space or of data, down to where Python itself does not start."""
    lines = ("import resource, sys; sys.path.insert(0, sys.argv[1]); import kshipra\n"
             "kind = getattr(resource, sys.argv[2])\n"
             "with open('/proc/self/status') as f:\n"
             "    kb = dict(line.split(':', 1) for line in f)\n"
             "used = int(kb[sys.argv[3]].split()[0]) << 10\n"
             "resource.setrlimit(kind, (used + (int(sys.argv[4]) << 20),) * 2)\n"
             "sys.exit(kshipra.main(['Once', '-n', '3', '--temp', '0', '--device', 'native', "
             "'-t', '2']))\n")
    codes = set()
    for kind, counted in (("RLIMIT_AS", "VmSize"), ("RLIMIT_DATA", "VmData")):
        for mb in (4, 16, 30, 40, 60, 500):
            done = subprocess.run([sys.executable, "-c", lines, os.path.dirname(kshipra.__file__),
                                   kind, counted, str(mb)], capture_output=True, check=False)
            assert done.returncode in (0, 1) and b"Traceback" not in done.stderr, (mb, done)
            assert done.returncode == 0 or b"Errno 12] Cannot allocate" not in done.stderr \
                or b"cannot be had" in done.stderr or b"map" in done.stderr, (mb, done)
            codes.add(done.returncode)
    assert codes == {0, 1}
