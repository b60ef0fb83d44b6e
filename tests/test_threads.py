"""Chapter 18, and what it needs of chapters 5 and 6: threads, of Python and of a program, a fork,
an interrupt at any line; each leaves every answer as it is."""
import collections
import concurrent.futures
import gc
import itertools
import math
import os
import pathlib
import random
import subprocess
import sys
import threading
from array import array

import pytest

import kshipra
import tiny

NATIVE = pytest.mark.skipif(tiny.REFUSAL is not None,
                            reason=str(tiny.REFUSAL))
GREEDY = dict(temperature=0, ignore_eos=True)
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def native(path, n_threads, **options):
    """Return a Model on so many threads, however few cores there are."""
    checkpoint = kshipra.open_checkpoint(path)
    return kshipra.Model(checkpoint, kshipra.tokenizer_of(checkpoint),
                         kshipra.Native(kshipra.choose_isa(os.environ)[0], n_threads), **options)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny.write(tmp_path_factory.mktemp("threads") / "m.gguf", format="Q8_0")


PROMPTS = [tiny.ids(n, seed=n) for n in (5, 17, 30, 3)]


@pytest.fixture(scope="module")
def texts(path):
    """What each prompt gives alone, in plain Python."""
    model = kshipra.load(path, "python")
    return [list(model.generate_ids(prompt, 12, **GREEDY)) for prompt in PROMPTS]


@NATIVE
def test_threads_end_with_their_model():
    before = threading.active_count()
    for _ in range(3):
        model = native(None, 3)
        list(model.generate_ids("a", 3))
        assert threading.active_count() == before + 2
        del model
        gc.collect()
    assert threading.active_count() == before
    with native(None, 3) as model:
        assert threading.active_count() == before + 2
    assert threading.active_count() == before
    model.close()
    with pytest.raises(kshipra.KshipraError, match="closed; load it again"):
        list(model.generate_ids("a", 3))


@pytest.mark.parametrize("device", ["python", pytest.param("native", marks=NATIVE)])
def test_a_model_that_goes_lets_go_of_its_file(path, device):
    """U11: at once, not when garbage is looked for."""
    if not os.path.exists("/proc/self/maps"):
        pytest.skip("no /proc")

    def mapped():
        with open("/proc/self/maps") as f:
            return path in f.read()
    gc.collect()
    gc.disable()
    try:
        model = kshipra.load(path, device)
        list(model.generate_ids("abc", 3))
        assert mapped()
        del model
        assert not mapped()
    finally:
        gc.enable()


@NATIVE
@pytest.mark.parametrize("when", ["thread", "subinterpreter"])
def test_fewer_threads_where_the_system_gives_no_more(monkeypatch, capsys, path, texts, when):
    """R19 and U1: a limit on processes; an interpreter that may start none."""
    started, start = [], threading.Thread.start

    def limited(thread):
        started.append(thread)
        if len(started) > (1 if when == "thread" else 0):
            raise RuntimeError("can't start new thread")
        start(thread)
    monkeypatch.setattr(threading.Thread, "start", limited)
    model = native(path, 4)
    assert model.ops.n_threads == (2 if when == "thread" else 1)
    assert list(model.generate_ids(PROMPTS[2], 12, **GREEDY)) == texts[2]
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "of 4 threads: can't start new thread" in message


@NATIVE
def test_more_threads_than_processors_are_not_started(monkeypatch, capsys, path, texts):
    """U14: they would only wait for each other."""
    monkeypatch.setattr(kshipra, "usable_cpus", lambda: {0, 3})
    model = kshipra.load(path, "native", threads=16)
    assert model.ops.n_threads == 2
    assert capsys.readouterr().err.startswith("kshipra: going on with 2 of 16 threads: ")
    assert list(model.generate_ids(PROMPTS[0], 12, **GREEDY)) == texts[0]


def test_usable_cores_are_no_more_than_the_processors():
    assert 1 <= kshipra.usable_cores() <= len(kshipra.usable_cpus())


@NATIVE
def test_a_run_that_ctrl_c_breaks_off_is_completed(monkeypatch, path, texts):
    """Interrupted after the workers were woken, the team comes to the end of that run."""
    model = native(path, 2)
    assert list(model.generate_ids(PROMPTS[0], 12, **GREEDY)) == texts[0]
    team, walk, strikes = model.ops.team, model.ops.team._walk, [1]

    def interrupted(i, *run):
        if i == 0 and strikes:
            strikes.pop()
            raise KeyboardInterrupt
        walk(i, *run)
    monkeypatch.setattr(team, "_walk", interrupted)
    before = list(model.session.tokens)
    with pytest.raises(KeyboardInterrupt):
        model.step([(3, len(before), model.session)])
    assert model.session.tokens == before
    assert list(model.generate_ids(PROMPTS[0], 12, **GREEDY)) == texts[0]


# One model, several threads

@pytest.mark.parametrize("page_size", [None, 8])
@pytest.mark.parametrize("device", ["python", pytest.param("native", marks=NATIVE)])
def test_generations_that_take_turns_give_what_they_give_alone(path, texts, device, page_size):
    model = kshipra.load(path, device, page_size=page_size)
    turns = [model.generate_ids(prompt, 12, **GREEDY) for prompt in PROMPTS]
    assert list(zip(*itertools.zip_longest(*turns))) == list(map(tuple, texts))


@NATIVE
@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("n_callers", [2, 4])
def test_threads_on_one_model_give_what_they_give_alone(path, texts, n_callers, n_threads):
    """F3: each of several Python threads, on one model, at once."""
    model, errors = native(path, n_threads), []

    def call(i):
        for round in range(3):
            which = (i + round) % len(PROMPTS)
            if list(model.generate_ids(PROMPTS[which], 12, **GREEDY)) != texts[which]:
                errors.append(which)
            if len(model.logits(PROMPTS[i])) != len(PROMPTS[i]):
                errors.append(-1)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with concurrent.futures.ThreadPoolExecutor(n_callers) as pool:
            list(pool.map(call, range(n_callers)))
    finally:
        sys.setswitchinterval(interval)
    assert errors == []


@NATIVE
def test_a_generation_may_be_closed_from_another_thread(path, texts):
    model = native(path, 2)
    for _ in range(20):
        generation, begun = model.generate(PROMPTS[0], 200, **GREEDY), threading.Event()

        def read():
            for _ in generation:
                begun.set()
            begun.set()
        reader = threading.Thread(target=read)
        reader.start()
        begun.wait(20)
        generation.close()
        reader.join(20)
        assert not reader.is_alive() and len(generation.ids) < 200
        assert list(generation) == []
    assert list(model.generate_ids(PROMPTS[1], 12, **GREEDY)) == texts[1]


def test_a_progress_callback_that_uses_the_text_being_read_is_refused(path, texts):
    """F6: in one sentence; what it asked for itself is right, and so is the next call."""
    model, inner = kshipra.load(path, "python"), []
    model.prefill_rows = 8

    def progress(done, total):
        if done == 8:
            inner.extend(model.generate_ids(PROMPTS[1], 12, **GREEDY))
    with pytest.raises(kshipra.KshipraError, match="progress callback"):
        list(model.generate(PROMPTS[2], 12, progress=progress, **GREEDY))
    assert inner == texts[1]
    generation = model.generate(PROMPTS[2], 12, progress=lambda *_: next(generation), **GREEDY)
    with pytest.raises(kshipra.KshipraError, match="own progress callback"):
        list(generation)
    assert list(model.generate_ids(PROMPTS[2], 12, **GREEDY)) == texts[2]


def test_a_step_within_a_step_is_refused(path, monkeypatch):
    model = kshipra.load(path, "python")
    run = model.ops.run

    def within(*args):
        model.step([(2, 0, kshipra.Sequence(model.cache))])
        return run(*args)
    monkeypatch.setattr(model.ops, "run", within)
    with pytest.raises(kshipra.KshipraError, match="from within a step"):
        model.logits([1, 2])


# Fork

CHILD_WAITS = 60                        # seconds, then the parent takes it for hung


def in_child(function):
    """Return function()'s whole number, computed in a forked child."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, b"%d" % function())
        finally:
            os._exit(0)
    os.close(write)
    killer = threading.Timer(CHILD_WAITS, os.kill, (pid, 9))
    killer.start()
    with os.fdopen(read, "rb") as f:
        found = f.read()
    os.waitpid(pid, 0)
    killer.cancel()
    return int(found or -1)


@NATIVE
@forks
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("n_threads", [1, 2])
def test_parent_and_child_of_a_fork_go_on_by_themselves(path, texts, n_threads):
    """A child has its own copy of the cache and of the activations, and threads of its own."""
    model = native(path, n_threads)
    going = model.generate_ids(PROMPTS[2], 12, **GREEDY)
    begun = list(itertools.islice(going, 4))
    stop, answers = threading.Event(), []

    def parent_goes_on():
        while not stop.is_set():
            answers.append(list(model.generate_ids(PROMPTS[1], 12, **GREEDY)) == texts[1])
    other = threading.Thread(target=parent_goes_on)
    other.start()
    try:
        children = [in_child(lambda: sum(list(model.generate_ids(prompt, 12, **GREEDY)) == text
                                         for prompt, text in zip(PROMPTS, texts)))
                    for _ in range(4)]
    finally:
        stop.set()
        other.join()
    assert children == [4] * 4 and answers and all(answers)
    assert in_child(lambda: begun + list(going) == texts[2]) == 1
    assert begun + list(going) == texts[2]


@forks
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_memory_is_not_shared_with_a_child():
    memory = kshipra.anonymous_memory(4096)
    memory[:3] = b"abc"

    def overwrite():
        memory[:3] = b"xyz"
        return memory[0]
    assert in_child(overwrite) == ord("x") and memory[:3] == b"abc"


# Arguments of step

def test_rows_that_do_not_exist_cannot_be_wanted(path, device):
    """F4: a row that was not computed would be foreign memory."""
    model = kshipra.load(path, device)
    for wanted in ([2], [-1], [0, 1 << 40]):
        with pytest.raises(kshipra.KshipraError, match="is wanted, but the rows are 0..1"):
            model.step([(1, 0, model.session), (2, 1, model.session)], wanted)
    assert model.session.tokens == [] and list(model.session.table) == []


def test_a_sequence_of_another_cache_is_refused(path, device):
    """F5: its page numbers mean nothing here."""
    model, other = kshipra.load(path, device), kshipra.load(path, device, page_size=8)
    with pytest.raises(kshipra.KshipraError, match="another model.s cache"):
        model.step([(1, 0, other.session)])
    assert other.session.tokens == [] and model.step([(1, 0, model.session)])


SUBINTERPRETER = """
import sys
sys.path.insert(0, {home!r})
import kshipra
model = kshipra.load({path!r}, threads=2)
found = list(model.generate_ids({prompt!r}, 12, temperature=0, ignore_eos=True))
assert found == {expected!r}, found
model.close()
"""
RUN_IN_SUBINTERPRETER = """
import sys
try:
    import _interpreters as interpreters        # 3.13
except ImportError:
    try:
        import _xxsubinterpreters as interpreters
    except ImportError:
        sys.exit(77)
if sys.version_info >= (3, 13):
    id = interpreters.create(sys.argv[1])
else:
    id = interpreters.create(isolated=sys.argv[1] == "isolated")
if hasattr(interpreters, "exec"):
    failed = interpreters.exec(id, sys.stdin.read())
else:
    failed = interpreters.run_string(id, sys.stdin.read())
if failed is not None:
    sys.exit(str(failed))
interpreters.destroy(id)
"""


def pythons():
    """Return the Python that runs this; in a deep run, the others of this machine too."""
    versions = pathlib.Path.home() / ".pyenv" / "versions"
    return [sys.executable] + (sorted(map(str, versions.glob("3.*/bin/python3")))
                               if os.environ.get("KSHIPRA_DEEP") else [])


@NATIVE
@pytest.mark.parametrize("kind", ["legacy", "isolated"])
def test_u1_a_subinterpreter_computes_with_the_threads_it_may_start(path, texts, kind):
    """U1: in real ones; where they cannot have ctypes, in plain Python."""
    tried = 0
    for python in pythons():
        if subprocess.run([python, "-c", "import sys; sys.exit(sys.version_info < (3, 9))"],
                          check=False).returncode:
            continue
        code = SUBINTERPRETER.format(home=os.path.dirname(kshipra.__file__), path=path,
                                     prompt=PROMPTS[2], expected=texts[2])

        def run(code):
            return subprocess.run([python, "-c", RUN_IN_SUBINTERPRETER, kind], input=code,
                                  capture_output=True, text=True, timeout=60, check=False)

        if run("import hashlib").returncode == 0:       # with it 3.12.1 breaks down by itself
            done = run(code)
            assert done.returncode == 0, (python, done.stderr)
            tried += 1
    if not tried:
        pytest.skip("no Python here has subinterpreters")


@NATIVE
def test_a_worker_without_memory_tries_again(monkeypatch, path, texts):
    """Were its thread to end, all others would wait for it at the next barrier, for ever."""
    model = native(path, 3)
    assert list(model.generate_ids(PROMPTS[0], 12, **GREEDY)) == texts[0]
    team, refused = model.ops.team, collections.Counter()
    walk, rng = team._walk, random.Random(1)

    class Done:
        """A lock that is opened without memory, every other time."""

        def __init__(self, lock):
            self.lock, self.acquire = lock, lock.acquire

        def locked(self):
            if rng.random() < 0.5:
                refused["done"] += 1
                raise MemoryError
            return self.lock.locked()

        def release(self):
            self.lock.release()

    def poor(i, *run):
        for _ in range(rng.randrange(3) if i else 0):
            refused[i] += 1
            if refused[i] % 2:
                raise MemoryError
        walk(i, *run)
    monkeypatch.setattr(team, "_walk", poor)
    team.done = [Done(lock) for lock in team.done]
    for prompt, text in zip(PROMPTS, texts):
        assert list(model.generate_ids(prompt, 12, **GREEDY)) == text
    assert min(refused[1], refused[2], refused["done"]) > 5
    assert all(thread.is_alive() for thread in team.threads)
    model.close()
    assert not any(thread.is_alive() for thread in team.threads)


# Interrupts

class Interrupter:
    """Raises an exception before the n-th line that runs in functions of kshipra."""

    def __init__(self, n, exception):
        self.left, self.exception, self.where = n, exception, None

    def __call__(self, frame, event, arg):
        return self.line if frame.f_code.co_filename == kshipra.__file__ else None

    def line(self, frame, event, arg):
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.where = f"{frame.f_code.co_name}:{frame.f_lineno}"
                sys.settrace(None)
                raise self.exception
        return self.line


N_INTERRUPTS = int(os.environ.get(
    "KSHIPRA_INTERRUPTS", 200 if os.environ.get("KSHIPRA_DEEP") else 40))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("device", ["python", pytest.param("native", marks=NATIVE)])
@pytest.mark.parametrize("exception", [KeyboardInterrupt, MemoryError])
def test_an_interrupt_at_any_line_leaves_right_answers(path, texts, device, exception):
    """R13, R14, F2: in prefill and decode, then the same model is asked again.

    KSHIPRA_INTERRUPTS=2000 asks for a long run of it.
    """
    rng, model = random.Random(device), None
    for round in range(N_INTERRUPTS):
        if model is None or round % 10 == 0:
            model = native(path, 2, page_size=8) if device == "native" else kshipra.load(
                path, device, page_size=8)
        hit = Interrupter(int(10 ** rng.uniform(0, 3.9)), exception)
        which = rng.randrange(len(PROMPTS))
        sys.settrace(hit)
        try:
            list(model.generate_ids(PROMPTS[which], 12, **GREEDY))
        except exception:
            pass
        finally:
            sys.settrace(None)
        for i in (which, (which + 1) % len(PROMPTS)):
            found = list(model.generate_ids(PROMPTS[i], 12, **GREEDY))
            assert found == texts[i], f"after {exception.__name__} at {hit.where}"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("exception", [KeyboardInterrupt, MemoryError])
def test_an_interrupt_while_a_model_loads_leaves_nothing(path, texts, exception):
    """No thread, no map of the file; and the next load is as good as the first."""
    gc.collect()
    rng, n_threads = random.Random(4), threading.active_count()
    for round in range(max(10, N_INTERRUPTS // 4)):
        hit = Interrupter(int(10 ** rng.uniform(0, 4.2)), exception)
        sys.settrace(hit)
        try:
            model = native(path, 2) if tiny.REFUSAL is None else kshipra.load(path)
        except exception:
            model = None
        finally:
            sys.settrace(None)
        if round % 5 == 0:
            again = model or kshipra.load(path)
            assert list(again.generate_ids(PROMPTS[0], 12, **GREEDY)) == texts[0], hit.where
            again = None
        model = None
        gc.collect()
        assert threading.active_count() <= n_threads, hit.where
        if os.path.exists("/proc/self/maps"):
            with open("/proc/self/maps") as f:
                assert path not in f.read(), hit.where


def test_an_interrupt_where_a_step_ends_does_not_leave_it_going_on(path, texts):
    """At each line event of Engine.step itself, that of leaving its `with` too."""
    model, code = kshipra.load(path, "python"), kshipra.Engine.step.__code__
    for n in range(1, 9):
        seen = []

        def trace(frame, event, arg):
            if event == "line":
                seen.append(frame.f_lineno)
                if len(seen) == n:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace
        sys.settrace(lambda frame, event, arg: trace if frame.f_code is code else None)
        try:
            list(model.generate_ids(PROMPTS[0], 12, **GREEDY))
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert list(model.generate_ids(PROMPTS[0], 12, **GREEDY)) == texts[0], seen


def test_pages_that_were_lost_are_found_again():
    """A page that was taken, but came into no table; a sequence that went without a truncate."""
    pool = kshipra.PagePool([(1, 8)], 4, 8)
    held, lost = kshipra.Sequence(pool), kshipra.Sequence(pool)
    held.reserve(0, 8)
    lost.reserve(0, 16)
    pool.take()
    del lost
    other = kshipra.Sequence(pool)
    other.reserve(0, 24)
    assert sorted([*held.table, *other.table]) == [0, 1, 2, 3]
    assert pool.refs == [1, 1, 1, 1]
    with pytest.raises(kshipra.KshipraError, match="all 4 pages"):
        other.reserve(24, 32)


@pytest.mark.parametrize("lines, files, share", [
    ("", {}, math.inf), ("0::/\n", {"cpu.max": "max 100000"}, math.inf),
    ("0::/\n", {"cpu.max": "50000 100000"}, 0.5),
    ("0::/a/b\n", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, 1.5),
    ("0::/a/b\n", {"cpu.max": "20000 100000", "a/b/cpu.max": "90000 100000"}, 0.2),
    ("0::/host/path\n", {"cpu.max": "200000 100000"}, 2.0),
    ("5:memory:/x\n4:cpu,cpuacct:/x/y\n", {
        "cpu,cpuacct/x/cpu.cfs_quota_us": "50000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000",
        "cpu,cpuacct/x/y/cpu.cfs_quota_us": "-1",
        "cpu,cpuacct/x/y/cpu.cfs_period_us": "100000"}, 0.5),
    ("4:cpu,cpuacct:/docker/1\n", {
        "cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3.0),
    ("odd\n0::/\n", {"cpu.max": "0 0"}, math.inf)])
def test_r20_a_share_of_processor_time_is_the_least_of_all_groups(tmp_path, lines, files, share):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(lines)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert kshipra.cpu_share(str(tmp_path)) == share


def test_r20_half_a_core_is_one_thread(monkeypatch):
    monkeypatch.setattr(kshipra, "cpu_share", lambda: 0.5)
    assert kshipra.usable_cores() == 1
