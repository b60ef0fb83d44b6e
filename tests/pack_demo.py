"""Pack two GGUF files into the last chapter of kshipra.py.

    python tests/pack_demo.py DEMO.gguf DRAFT.gguf

Everything from the banner of chapter 23 to the end of the file is written anew.  What the
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
# Two small llama models that were trained for this project on stories of its own grammar:
# the demo (4 layers, width 64, Q4_0) and a draft for speculative decoding (one layer of
# width 32), which nothing here uses yet.  Each is a GGUF file, compressed by zlib and
# written in base 85.

def unpack_model(text):
    """Return the bytes of the GGUF file packed in text."""
    return zlib.decompress(base64.b85decode(text.replace("\\n", "")))


'''
CLOSING = '''
if __name__ == "__main__":
    # A second file that imports kshipra shall get this very module, not load it once more.
    sys.modules.setdefault("kshipra", sys.modules["__main__"])
    sys.exit(main())
'''


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
        f.write(text[:text.index(BANNER)] + OPENER + data + CLOSING)
    os.replace(SOURCE + ".part", SOURCE)


if __name__ == "__main__":
    main()
