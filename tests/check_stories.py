"""Sample stories of the model in the file and count what breaks in them.

    python tests/check_stories.py [NUMBER [GGUF]]

A story holds together when one name and one of he and she last from its first line to its
last, and when it ends by itself.  demo_expected.json has the names and all the words that the
model was trained on.
"""
import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import kshipra

CORPUS = json.loads((HERE / "demo_expected.json").read_text(encoding="utf-8"))["corpus"]
HE, SHE, WORDS = (set(CORPUS[part].split()) for part in ("he", "she", "words"))
PRONOUNS = {"he": HE, "him": HE, "his": HE, "she": SHE, "her": SHE}
PROMPT = "Once upon a time"


def sample(model, number, prompt=PROMPT):
    """Yield (text, whether it ended by itself) of stories, sampled as the command line does."""
    for seed in range(number):
        ids = list(model.generate_ids(prompt, seed=seed))
        ended = len(ids) < model.check_limit(None, model.ctx_size)
        yield prompt + model.tokenizer.decode(ids), ended


def faults(text):
    """Return what breaks in a story, as (the cast does not hold or "", the unknown words)."""
    words = re.findall(r"[A-Za-z0-9']+", text)
    names = [word for word in words if word in HE | SHE]
    cast = ""
    if len(names) < 2:
        cast = "no hero"
    elif len(set(names)) > 1:
        cast = "names: " + ", ".join(sorted(set(names)))
    else:
        wrong = [w for w in words if names[0] not in PRONOUNS.get(w.lower(), names)]
        cast = f"{names[0]}: {wrong[0]}" if wrong else ""
    return cast, [word for word in words if word not in WORDS]


def main():
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    model = kshipra.load(*sys.argv[2:])
    held = known = ended = 0
    for text, whole in sample(model, number):
        cast, unknown = faults(text)
        held, known, ended = held + (not cast), known + (not unknown), ended + whole
        if cast or unknown or not whole:
            print(cast, unknown, "" if whole else "no end", text, sep="\n", end="\n\n")
    print(f"of {number}: name and pronoun hold in {held}, all words known in {known}, "
          f"ended {ended}")


if __name__ == "__main__":
    main()
