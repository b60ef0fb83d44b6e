"""Check a real GPU, and measure it: python tests/gpu_check.py MODEL.gguf [tokens]

First the logits of a prompt are compared, with ==, with those of the processor, for each type of
cache, read whole and token by token.  Then decode speed is set beside the memory bandwidth that
the card shows in a plain copy, as every token reads all weights once, and prefill is timed.
Exits 1 where a bit differs.
"""
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import kshipra  # noqa: E402
import kshipra_cuda  # noqa: E402

PROMPT = "The capital of France is Paris, and the capital of Italy is"


def bandwidth(device, n_bytes=1 << 28):
    """Return the bytes a second that filling memory of the card writes, the best of five."""
    address, best = device.alloc(n_bytes), 0.0
    for _ in range(6):
        start = time.perf_counter()
        device.driver.cuMemsetD8_v2(address, 0, n_bytes)
        device.download(address, 4)     # waits for it
        best = max(best, n_bytes / (time.perf_counter() - start))
    device.free(address)
    return best


def check(path, ids):
    """Return how many rows of logits differ from the processor's."""
    n_wrong = 0
    for kv_type in kshipra.KV_TYPES:
        with kshipra.load(path, device="native", kv_type=kv_type, ctx_size=512) as model:
            expected = model.logits(ids)
        with kshipra.load(path, device="cuda", kv_type=kv_type, ctx_size=512) as model:
            found = model.logits(ids)
            seq = kshipra.Sequence(model.cache)
            found += [model.step([(t, i, seq)])[0] for i, t in enumerate(ids)]
        wrong = sum(a.tobytes() != b.tobytes() for a, b in zip(found, expected * 2))
        print(f"kv {kv_type:<5} {len(found)} rows of logits, {wrong} differ")
        n_wrong += wrong
    return n_wrong


def main():
    path, n_tokens = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 128
    with kshipra.load(path, device="cuda", ctx_size=1024) as model:
        device = model.ops.device
        print(f"{device.name}, compute capability {device.compute / 10}, NVRTC "
              "{}.{}".format(*device.compiler.version))
        ids = model.tokenizer.encode(PROMPT)
        device.enter()
        ceiling = bandwidth(device)
        long = (ids * 40)[:384]
        model.logits(long)
        start = time.perf_counter()
        model.logits(long)
        print(f"prefill {len(long) / (time.perf_counter() - start):.0f} tokens/s")
        seq, times = kshipra.Sequence(model.cache), []
        for pos in range(n_tokens):
            start = time.perf_counter()
            model.step([(ids[pos % len(ids)], pos, seq)])
            times.append(time.perf_counter() - start)
        median = statistics.median(times[8:])
        rate = model.ops.weights.n_bytes / median
        print(f"decode {1 / median:.1f} tokens/s, {rate / 1e9:.1f} GB/s of weights, "
              f"{100 * rate / ceiling:.0f} % of {ceiling / 1e9:.0f} GB/s")
    return 1 if check(path, ids) else 0


if __name__ == "__main__":
    sys.exit(main())
