"""Chapter 9, Batching: what a text is among others equals, to the bit, what it is alone."""
import asyncio
import itertools
import json
import threading

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (RuleBasedStateMachine, initialize, invariant, rule,
                                 run_state_machine_as_test)

import kshipra
import tiny
from kshipra import KshipraError, Scheduler, Sequence

GREEDY = {"temperature": 0, "ignore_eos": True}
SAMPLED = {"temperature": 1.2, "seed": 5, "repeat_penalty": 1.3}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny.write(tmp_path_factory.mktemp("batching") / "tiny.gguf", format="Q4_0", n_ctx=128,
                      n_layers=2)


def alone(path, device, prompt, **options):
    """Return (ids, text, finish_reason) of a text that has the model to itself."""
    with kshipra.load(path, device=device) as model:
        generation = model.generate(prompt, **options)
        text = "".join(generation)
        return generation.ids, text, generation.finish_reason


def outcome(generation):
    return generation.ids, generation.text, generation.finish_reason


# Static batches.

@pytest.mark.parametrize("lengths", list(itertools.permutations((3, 11, 70))), ids=str)
def test_p26_each_row_of_a_batch_is_its_text_alone(path, device, lengths):
    """Lengths in every order, with and without a common beginning."""
    for shared in (0, 2):
        prompts = [tiny.ids(shared) + tiny.ids(n - shared, seed=n) for n in lengths]
        with kshipra.load(path, device=device) as model:
            batch = model.generate_batch(prompts, max_tokens=6, **GREEDY)
        for prompt, generation in zip(prompts, batch):
            assert outcome(generation) == alone(path, device, prompt, max_tokens=6, **GREEDY)


def test_why_nothing_is_padded(tmp_path):
    """The classic fault of a batch in a rectangle: short prompts are padded on the left.

    Wrong twice: unless it is masked, the text sees the padding; and if it is, the text still
    begins at position 2, where the model has learnt another vector than for the first word.
    """
    model = kshipra.load(tiny.write(tmp_path / "gpt2.gguf", "gpt2", n_ctx=64), device="python")
    prompt, pad = tiny.ids(5), [0, 0]
    right = model.logits(prompt)[-1]

    def distance(logits):
        return max(abs(a - b) for a, b in zip(logits, right))

    seen = model.logits(pad + prompt)[-1]
    seq = Sequence(model.scheduler.pool)
    seq.reserve(0, 2)
    seq.tokens[:] = pad
    layers = model.weights.layers
    for i in range(5):                          # each row sees the text before it, not the pad
        for layer in layers:
            layer.attention = layer.attention._replace(window=i + 1)
        shifted, = model.step([(prompt[i], 2 + i, seq)])
    for layer in layers:
        layer.attention = layer.attention._replace(window=0)
    assert distance(seen) > 0.1 and distance(shifted) > 0.1
    batch = model.generate_batch([prompt, tiny.ids(9)], max_tokens=1, **GREEDY)
    assert batch[0].ids == [right.index(max(right))]


def test_a_batch_ends_text_by_text(path, device):
    """Stop strings, limits and seeds are each text's own."""
    prompts = ["Hello", "Once", "It was"]
    options = [dict(max_tokens=n, temperature=1.5, seed=s, stop=stop)
               for n, s, stop in ((9, 1, ()), (5, 2, "e"), (0, 3, ("a", "b")))]
    with kshipra.load(path, device=device) as model:
        handles = [model.submit(prompt, **own) for prompt, own in zip(prompts, options)]
        for prompt, own, handle in zip(prompts, options, handles):
            assert handle.result(60) == handle.text
            assert outcome(handle) == alone(path, device, prompt, **own)


def test_a_batch_larger_than_the_pool_is_run_in_parts(path, device):
    prompts = [tiny.ids(20, seed=s) for s in range(9)]
    with kshipra.load(path, device=device, cache_tokens=128) as model:
        batch = model.generate_batch(prompts, max_tokens=20, **GREEDY)
        assert model.scheduler.pool.n_available == model.scheduler.pool.n_pages
    for prompt, generation in zip(prompts, batch):
        assert outcome(generation) == alone(path, device, prompt, max_tokens=20, **GREEDY)


def test_n_completions_of_a_prompt_share_its_pages(path, device):
    prompt = tiny.ids(70)
    with kshipra.load(path, device=device) as model:
        batch = model.generate_batch([prompt], n=3, max_tokens=5, temperature=1.5, seed=7)
        pool = model.scheduler.pool
        assert pool.n_pages - len(pool.free) <= 2 + 3       # idle ones included
    texts = [alone(path, device, prompt, max_tokens=5, temperature=1.5, seed=7 + i)
             for i in range(3)]
    assert [outcome(g) for g in batch] == texts and texts[0] != texts[1]


def test_refusals(path):
    with kshipra.load(path) as model:
        for prompts, options, words in (
                ([tiny.ids(200)], {}, "holds 128"), ([[]], {}, "prompt is empty"),
                ("abc", {}, "list of prompts is needed"), (["a"], {"n": 0}, "n is 0"),
                (["a"], {"max_tokens": -1}, "max_tokens"), (["a"], {"top_p": 2}, "top_p")):
            with pytest.raises((KshipraError, TypeError), match=words):
                model.generate_batch(prompts, **options)
        assert model.generate_batch([]) == []


# The continuous scheduler, step by step.

PROMPTS = [tiny.ids(n, seed=n) for n in (1, 3, 20, 63, 64, 65, 90)]
PROMPTS += [PROMPTS[6][:64] + tiny.ids(9, seed=2), PROMPTS[4] + [7], PROMPTS[5][:]]
OPTIONS = [GREEDY, {**SAMPLED, "ignore_eos": True}, {**GREEDY, "stop": "e"}]


@pytest.fixture(scope="module")
def truth(path):
    """outcome(prompt number, option number, max_tokens), of a text with the model to itself."""
    model, known = kshipra.load(path, device="python"), {}

    def outcome_of(i, j, n):
        if (i, j) not in known:
            generation = model.generate(PROMPTS[i], max_tokens=24, **OPTIONS[j])
            list(generation)
            known[i, j] = generation.ids
        transcript = model._request(PROMPTS[i], max_tokens=n, **OPTIONS[j]).transcript
        for token in known[i, j]:
            if transcript.finish_reason is None:
                transcript.push(token)
        return transcript.ids, transcript.text, transcript.finish_reason
    return outcome_of


class Traffic(RuleBasedStateMachine):
    """Requests that arrive, are cancelled, run and are preempted in any order."""
    device = None

    @initialize(n_pages=st.sampled_from([3, 5, 12]), max_rows=st.sampled_from([8, 64, 192]),
                page_size=st.sampled_from([16, 64]))
    def start(self, n_pages, max_rows, page_size):
        n_pages = max(n_pages, 128 // page_size)
        self.model = MODELS[self.device]
        self.pool = self.model.new_pool(n_pages * page_size, page_size)
        self.scheduler = Scheduler(self.model, self.pool, max_rows, max_running=6)
        self.model._scheduler = self.scheduler
        self.requests = []

    @rule(i=st.integers(0, len(PROMPTS) - 1), j=st.integers(0, len(OPTIONS) - 1),
          n=st.integers(1, 24))
    def arrive(self, i, j, n):
        if len(self.requests) < 16:
            request = self.model._request(PROMPTS[i], max_tokens=n, **OPTIONS[j])
            self.requests.append(((i, j, n), request))
            self.scheduler.add(request)

    @rule(n=st.integers(1, 12))
    def run(self, n):
        for _ in range(n):
            oldest = self.scheduler.running[:1]
            before = [len(r.seq.tokens) + len(r.ids) for r in oldest]
            self.scheduler.step()
            for request, progress in zip(oldest, before):   # no request starves
                assert request.finish_reason \
                    or len(request.seq.tokens) + len(request.ids) > progress

    @rule(which=st.integers(0, 99))
    def cancel(self, which):
        if self.requests:
            self.requests[which % len(self.requests)][1].cancel()

    @invariant()
    def those_that_ended_said_what_they_say_alone(self):
        for key, request in getattr(self, "requests", []):
            ids, text, reason = TRUTH(*key)
            if request.finish_reason == "cancelled":
                assert request.ids == ids[:len(request.ids)] and text.startswith(request.text)
            elif request.finish_reason:
                assert outcome(request) == (ids, text, reason)
            else:
                assert request.ids == ids[:len(request.ids)]

    @invariant()
    def every_page_has_its_owners(self):
        if hasattr(self, "pool"):
            held = [0] * self.pool.n_pages
            for _, request in self.requests:
                for page in request.seq.table:
                    held[page] += 1
            assert self.pool.refs == held
            assert self.pool.n_available == held.count(0)

    @invariant()
    def they_stand_in_order_of_arrival(self):
        if hasattr(self, "scheduler"):
            order = [id(request) for _, request in self.requests]
            places = [order.index(id(r))
                      for r in (*self.scheduler.running, *self.scheduler.waiting)]
            assert places == sorted(places)

    def teardown(self):
        if hasattr(self, "scheduler"):
            for _ in range(2000):
                if not self.scheduler.step():
                    break
            for _, request in self.requests:
                assert request.finish_reason, "a request starves"
            self.those_that_ended_said_what_they_say_alone()
            assert not any(self.pool.refs)


MODELS, TRUTH = {}, None


@pytest.mark.deep(device="python")
def test_any_traffic(path, device, truth):
    """Alone, among 1 to 16 others that come and go, after preemption and after a found prefix."""
    global TRUTH
    MODELS.setdefault(device, kshipra.load(path, device=device))
    TRUTH, Traffic.device = truth, device
    run_state_machine_as_test(Traffic, settings=settings(
        max_examples=15, stateful_step_count=20, deadline=None,
        suppress_health_check=list(HealthCheck)))


def test_preemption_happens_and_changes_nothing(path, device, truth):
    model = kshipra.load(path, device=device, cache_tokens=256)
    scheduler = Scheduler(model, model.scheduler.pool)
    requests = [model._request(PROMPTS[i], max_tokens=24, **GREEDY) for i in (3, 4, 5, 6, 2)]
    for request in requests:
        scheduler.add(request)
    while scheduler.step():
        pass
    assert scheduler.n_preempted > 0
    assert [outcome(r) for r in requests] == [truth(i, 0, 24) for i in (3, 4, 5, 6, 2)]
    assert model.scheduler.pool.n_available == model.scheduler.pool.n_pages


def test_a_prompt_is_read_in_pieces_between_decoding_rows(path):
    """A long prompt must not hold up those that decode: each step has a row of theirs."""
    model = kshipra.load(path)
    scheduler = Scheduler(model, model.scheduler.pool, max_rows=16)
    quick = model._request(PROMPTS[1], max_tokens=20, **GREEDY)
    scheduler.add(quick)
    scheduler.step()
    scheduler.add(model._request(PROMPTS[6], max_tokens=2, **GREEDY))
    for n in range(2, 8):
        scheduler.step()
        assert len(quick.ids) == n
    assert scheduler.n_rows == len(PROMPTS[1]) + 6 + 90


def test_what_cannot_be_computed_ends_alone(path, monkeypatch):
    """One request whose tokens are refused by the model; the others do not notice."""
    model = kshipra.load(path)
    scheduler = Scheduler(model, model.scheduler.pool)
    bad, good = (model._request(PROMPTS[i], max_tokens=5, **GREEDY) for i in (1, 2))
    bad.tokens[1] = 10 ** 6
    for request in (bad, good):
        scheduler.add(request)
    while scheduler.step():
        pass
    assert bad.finish_reason == "error" and good.finish_reason == "length"
    with pytest.raises(KshipraError, match="token 1000000 is outside"):
        bad.result()
    assert not any(model.scheduler.pool.refs)


# In the background, for many threads and for asyncio.

def test_many_threads_submit(path, device, truth):
    got = {}
    with kshipra.load(path, device=device) as model:
        def ask(i):
            handle = model.submit(PROMPTS[i], max_tokens=8, **GREEDY)
            got[i] = ("".join(handle), handle.ids, handle.finish_reason)
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(PROMPTS))]
        for thread in threads:
            thread.start()
        own = list(model.generate_ids(PROMPTS[2], max_tokens=8, **GREEDY))     # its own lane
        for thread in threads:
            thread.join()
    for i, (text, ids, reason) in got.items():
        assert (ids, text, reason) == truth(i, 0, 8)
    assert own == truth(2, 0, 8)[0]


def test_handles_are_awaited_iterated_and_cancelled(path, truth):
    async def main(model):
        whole = model.submit(PROMPTS[2], max_tokens=8, **GREEDY)
        parts = model.submit(PROMPTS[3], max_tokens=8, **GREEDY)
        endless = model.submit(PROMPTS[1], ignore_eos=True, **{**SAMPLED, "seed": 3})
        pieces = [piece async for piece in parts]
        assert await whole == truth(2, 0, 8)[1]
        assert "".join(pieces) == truth(3, 0, 8)[1] == await parts
        endless.cancel()
        await endless
        assert endless.finish_reason in ("cancelled", "length")
        waits = asyncio.ensure_future(model.submit(PROMPTS[6], max_tokens=20, **GREEDY)._whole())
        await asyncio.sleep(0)
        waits.cancel()                          # whoever awaits may leave; the loop goes on
        with pytest.raises(asyncio.CancelledError):
            await waits
        assert await model.submit(PROMPTS[4], max_tokens=3, **GREEDY) == truth(4, 0, 3)[1]
    with kshipra.load(path) as model:
        asyncio.run(main(model))


def test_closing_ends_what_runs(path):
    model = kshipra.load(path)
    handle = model.submit(PROMPTS[1], max_tokens=100, **GREEDY)
    never_run = model._request(PROMPTS[1], **GREEDY)
    model.close()
    handle.result(60)
    assert handle.finish_reason in ("cancelled", "length")
    with pytest.raises(TimeoutError):
        never_run.result(0.01)


# Forks, and sessions that outlive the process.

@pytest.mark.parametrize("page_size", [None, 16])
def test_forks_go_on_each_by_itself(path, device, page_size):
    prompt = tiny.ids(70)
    with kshipra.load(path, device=device, page_size=page_size, cache_tokens=512) as model:
        said = list(model.generate_ids(prompt, max_tokens=4, **GREEDY))
        forks = model.fork(3)
        pool = model.scheduler.pool
        assert max(pool.refs) >= 3              # shared, not copied
        for i, fork in enumerate(forks):
            longer = prompt + said[:i] + tiny.ids(3, seed=i)
            got = list(model.generate_ids(longer, max_tokens=4, session=fork, **GREEDY))
            assert got == alone(path, device, longer, max_tokens=4, **GREEDY)[0]
            fork.truncate(0)
        assert list(model.generate_ids(prompt, max_tokens=4, **GREEDY)) == said


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
def test_a_saved_session_goes_on_to_the_bit(path, device, tmp_path, kv_type):
    prompt = tiny.ids(50)
    with kshipra.load(path, device=device, kv_type=kv_type) as model:
        said = list(model.generate_ids(prompt, max_tokens=9, **GREEDY))
        model.save_session(tmp_path / "s")
        want = model.logits(prompt + said)[-1]
    with kshipra.load(path, device="python", kv_type=kv_type, page_size=16) as model:
        model.load_session(tmp_path / "s")
        kept = list(model.session.tokens)
        assert kept == (prompt + said)[:len(kept)] and len(kept) >= 58
        rows = [(t, len(kept) + i, model.session)
                for i, t in enumerate((prompt + said)[len(kept):])]
        assert model.step(rows)[-1] == want


def test_a_session_of_another_model_is_refused_and_changes_nothing(path, tmp_path):
    other = tiny.write(tmp_path / "other.gguf", format="Q4_0", n_ctx=128, n_layers=2, seed=9)
    with kshipra.load(path) as model, kshipra.load(other) as wrong:
        list(model.generate_ids(tiny.ids(9), max_tokens=2, **GREEDY))
        model.save_session(tmp_path / "s")
        list(wrong.generate_ids(tiny.ids(5), max_tokens=2, **GREEDY))
        before = list(wrong.session.tokens)
        with pytest.raises(KshipraError, match="saved with model"):
            wrong.load_session(tmp_path / "s")
        assert wrong.session.tokens == before


def test_p24_pages_are_found_again_by_their_own_model_alone(path, device):
    """Caches of other types have pages of their own: what is warm says what is cold."""
    options, prompt = {"max_tokens": 4, **GREEDY}, PROMPTS[6]
    models = [kshipra.load(path, device=device, kv_type=kv_type, page_size=8)
              for kv_type in ("f32", "f16")]
    cold = [outcome(model.generate_batch([prompt], **options)[0]) for model in models]
    for _ in range(2):
        for model, want in zip(models, cold):
            assert outcome(model.generate_batch([prompt], **options)[0]) == want
        assert all(model.scheduler.pool.n_found for model in models)


def test_the_command_line_runs_a_batch(path, capfd):
    arguments = ["-m", path, "-n", "5", "--temp", "0", "--batch-prompts", "Hello|On|ce upon"]
    assert kshipra.main(arguments) == 0
    out = capfd.readouterr().out
    texts = [alone(path, "python", p, max_tokens=5, temperature=0)[1]
             for p in ("Hello", "On", "ce upon")]
    assert out == "\n\n".join(p + t for p, t in zip(("Hello", "On", "ce upon"), texts)) + "\n"
    assert kshipra.main([*arguments, "--json"]) == 0
    objects = json.loads(capfd.readouterr().out)
    assert [o["text"] for o in objects] == texts
    assert {"tokens", "prompt_tokens", "finish_reason", "timings", "rss_mb"} < set(objects[0])
    for wrong in (["-p", "a"], ["--profile"]):
        with pytest.raises(SystemExit) as exit:
            kshipra.main([*arguments, *wrong])
        assert exit.value.code == 2


def test_a_request_for_which_no_thread_can_be_had_is_refused(path, truth, monkeypatch):
    """R19: and the next one, for which there is one, is served."""
    model = kshipra.load(path, "python", ctx_size=512)

    def refuse(thread):
        raise RuntimeError("can't start new thread")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(kshipra.KshipraError, match="can't start new thread.*generate_batch"):
            model.submit(PROMPTS[0], max_tokens=3, **GREEDY)
    assert model.submit(PROMPTS[0], max_tokens=3, **GREEDY).result(60)
    model.close()


def test_what_goes_wrong_between_steps_ends_all_requests(path, monkeypatch):
    """None waits for ever, none keeps its pages, and the next ones are served."""
    model = kshipra.load(path, "python", ctx_size=512)
    choose, broken = model.scheduler._choose_rows, [True]

    def fails():
        if broken:
            raise MemoryError
        return choose()
    monkeypatch.setattr(model.scheduler, "_choose_rows", fails)
    handles = [model.submit(prompt, max_tokens=3, **GREEDY) for prompt in PROMPTS[:3]]
    for handle in handles:
        with pytest.raises(MemoryError):
            handle.result(60)
        assert handle.finish_reason == "error"
    assert model.scheduler.pool.n_available == model.scheduler.pool.n_pages
    broken.clear()
    assert model.submit(PROMPTS[0], max_tokens=3, **GREEDY).result(60)
    model.close()
