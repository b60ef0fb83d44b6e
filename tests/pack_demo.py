"""Pack two GGUF files into the last chapter of kshipra.py.

    python tests/pack_demo.py DEMO.gguf DRAFT.gguf

Everything from the banner of chapter 23 to the packed text's end is written anew.  What the
model should say is in tests/demo_expected.json; replace that file together with the model.
"""
import base64
import os
import sys
import textwrap
import zlib

SOURCE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "kshipra.py")
BANNER = "# " + "-" * 87 + "\n# 23. The model in the file\n"
OPENER = BANNER + '''#
# Two small llama models, each a GGUF file compressed by zlib and written in base 85: the demo
# (4 layers of width 96) and its draft for speculative decoding (one layer of width 32), both
# in Q4_0.
#
# All they have ever read comes from a story grammar written for this project: some twenty
# plots in interchangeable phrases, a hero with a name, a companion without one, and a few
# answers about language models.  Twenty million tokens of it are few.  A network finds
# the phrases in them soon, but not that the name in line nine is the name in line one; so it
# did not start at random.  One head for each list of the cast (names, companions, things,
# colours) was set to attend to whatever belongs to its list and to copy it, and training went
# on from there.  The loss was the cross-entropy of the next token after the last layer, plus
# 0.1, 0.2 and 0.15 times the same after layers 1 to 3 through the same norm and head, which is
# what early exit lives on.  Towards the end the forward pass saw every matrix rounded to Q4_0,
# while the steps went to the unrounded ones: the network learned to write with the weights
# that it was to have.

def unpack_model(text):
    """Return the bytes of the GGUF file packed in text."""
    return zlib.decompress(base64.b85decode(text.replace("\\n", "")))


'''

CLOSING = '\nif __name__ == "__main__":\n'         # from here on the file stays as it is


def packed(path):
    with open(path, "rb") as f:
        text = base64.b85encode(zlib.compress(f.read(), 9)).decode("ascii")
    return "\n".join(textwrap.wrap(text, 98, break_on_hyphens=False))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(SOURCE, encoding="utf-8") as f:
        text = f.read()
    if text.count(BANNER) != 1:
        sys.exit(f"{SOURCE} has no single banner of chapter 23")
    data = "".join(f'{name} = """\n{packed(path)}\n"""\n'
                   for name, path in zip(("DEMO_MODEL", "DRAFT_MODEL"), sys.argv[1:]))
    with open(SOURCE + ".part", "w", encoding="utf-8", newline="\n") as f:
        f.write(text[:text.index(BANNER)] + OPENER + data + text[text.rindex(CLOSING):])
    os.replace(SOURCE + ".part", SOURCE)


if __name__ == "__main__":
    main()
