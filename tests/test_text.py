"""Chapter 3: known answers, the merge loop against a plain one, properties, refusals.

Names P10 to P18 are those of the list of faults that other engines had and this one must not.
"""
import itertools
import json
import lzma
import random
import shutil
import struct
import time
import unicodedata
import zlib
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kshipra
import tiny
from kshipra import BYTE, CONTROL, NORMAL, SPACE, UNKNOWN, UNUSED, USER_DEFINED, KshipraError

VOCABULARIES = ["gpt-2", "llama-bpe", "qwen2", "llama-spm", "falcon", "phi-3", "deepseek-coder"]
KINDS = ["byte-level", "sentencepiece"]

# Whatever may stand in a text, with what tokenizers stumble over more often than chance has it.
TEXT = st.lists(st.one_of(
    st.characters(blacklist_categories=["Cs"]),
    st.sampled_from([" ", "  ", "\n", "\r\n", "\t", "'s", "the", " and", "1234", "é", "e\u0301",
                     "中", "😊", "<|im_end|>", "<s>", "</s>", "<0xF0>", SPACE, "\0", "\u0378",
                     "\ufeff"]),
)).map("".join)


def byte_level(special=(), merges=(), pre="gpt-2", **keys):
    """Return GGUF metadata: 256 byte tokens, one for each merge, then the special tokens."""
    tokens = list(kshipra.BYTE_TO_CHAR.values()) + [m.replace(" ", "") for m in merges]
    types = [NORMAL] * len(tokens) + [kind for _, kind in special]
    metadata = {"model": "gpt2", "pre": pre, "tokens": tokens + [text for text, _ in special],
                "token_type": types, "merges": list(merges), **keys}
    return {"tokenizer.ggml." + key: value for key, value in metadata.items() if value is not None}


def sentencepiece(words=(), special=(), **keys):
    """Return GGUF metadata: <unk> <s> </s>, 256 bytes, words with falling scores, special."""
    known = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    known += [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]
    known += [(word, NORMAL) for word in words] + list(special)
    metadata = {"model": "llama", "tokens": [text for text, _ in known],
                "token_type": [kind for _, kind in known],
                "scores": [-float(i) for i in range(len(known))],
                "bos_token_id": 1, "eos_token_id": 2, **keys}
    return {"tokenizer.ggml." + key: value for key, value in metadata.items() if value is not None}


WORDS = [SPACE, SPACE * 2, SPACE * 4, "th", "the", SPACE + "the", "an", "and", SPACE + "and",
         "a", "b", "c", "d", "e", "f", "h", "n", "t", "é", "x>", ">" + SPACE, "\n"]
MERGES = ["Ġ Ġ", "t h", "th e", "Ġ the", "a n", "an d", "Ġ and", "Ã ©", "Ġ a", "ĠĠ ĠĠ", "a a",
          "aa aa", "( (", "(( ((", "1 1"]


def tokenizer_of_kind(kind, **keys):
    if kind == "byte-level":
        special = [("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL), ("<tool>", USER_DEFINED)]
        return kshipra.tokenizer_from_gguf(byte_level(special, MERGES, **keys))
    special = [("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL), ("<tool>", USER_DEFINED)]
    return kshipra.tokenizer_from_gguf(sentencepiece(WORDS, special, **keys))


@pytest.fixture(scope="module")
def small():
    return {kind: tokenizer_of_kind(kind) for kind in KINDS}


@pytest.fixture(scope="module")
def demo():
    """The tokenizer of the model in the file."""
    return kshipra.tokenizer_from_gguf(kshipra.open_checkpoint(None).metadata)


@pytest.fixture(scope="module")
def vocabulary(shared, tmp_path_factory):
    """A function: name of a vocabulary in the fixtures -> (Tokenizer, reader of its vectors)."""
    loaded = {}

    def get(name):
        place = shared / "fixtures" / "tokenizers" / name
        if name not in loaded:
            path = tmp_path_factory.mktemp("vocabulary") / f"{name}.gguf"
            path.write_bytes(lzma.decompress((place / "vocab.gguf.xz").read_bytes()))
            loaded[name] = kshipra.load_tokenizer(path)
        return loaded[name], lambda vectors: json.loads((place / f"{vectors}.json").read_text())
    return get


# 3.1 Merging

def merge_plainly(parts, rank):
    """Do what bpe_merge does, looking at every pair again after every merge."""
    while True:
        ranks = [(rank(*pair), i) for i, pair in enumerate(zip(parts, parts[1:]))
                 if rank(*pair) is not None]
        if not ranks:
            return parts
        i = min(ranks)[1]
        parts[i:i + 2] = [parts[i] + parts[i + 1]]


@given(text=st.text("ab", max_size=40),
       ranks=st.dictionaries(st.text("ab", min_size=2, max_size=4), st.integers(0, 5)))
def test_bpe_merge_equals_the_plain_loop(text, ranks):
    """Ranks that tie and ranks that fall included: SentencePiece has both."""
    def rank(left, right):
        return ranks.get(left + right)
    assert kshipra.bpe_merge(list(text), rank) == merge_plainly(list(text), rank)


@given(texts=st.lists(st.text(max_size=3), max_size=300), asked=st.text(max_size=3))
def test_a_finder_equals_a_dict(texts, asked):
    finder = kshipra.Finder([t.encode("utf-8", "surrogatepass") if i % 2 else t
                             for i, t in enumerate(texts)])
    for text in texts + [asked]:
        text = text.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape") \
            if texts.count(text) == 0 else text
        expected = next((i for i in range(len(texts)) if kshipra._as_str(
            finder.texts[i]) == text), None)
        assert finder.get(text) == expected


@given(texts=st.lists(st.binary(max_size=3), max_size=200), asked=st.binary(max_size=3))
def test_a_finder_over_the_strings_of_a_file_equals_a_dict(texts, asked):
    data, ends = b"", array("Q", [0])
    for text in texts:
        data += len(text).to_bytes(8, "little") + text
        ends.append(len(data))
    strings = kshipra.Strings(memoryview(data), ends)
    assert strings.raw() == texts and strings.joined() == data
    finder = kshipra.Finder(strings)
    for text in texts + [asked]:
        expected = texts.index(text) if text in texts else None
        assert finder.get(text.decode("utf-8", "surrogateescape")) == expected


@given(texts=st.lists(st.text("a▁é\udc80", max_size=5), max_size=20))
def test_words_are_cut_before_spaces_that_no_token_reaches_across(texts):
    """The same from a file, where texts are bytes, and from a list."""
    raw = [text.encode("utf-8", "surrogateescape") for text in texts]
    data = b"".join(len(text).to_bytes(8, "little") + text for text in raw)
    ends = array("Q", itertools.accumulate([8 + len(text) for text in raw], initial=0))
    found = [kshipra.SentencePiece(kshipra.Vocabulary(given, [NORMAL] * len(raw)), None,
                                   "never").cuts
             for given in (texts, raw, kshipra.Strings(memoryview(data), ends))]
    for text in ("a▁a", "é▁a", "▁▁a", "a▁▁", "\0▁"):
        reached = any(text[i:i + 2] in token for token in texts
                      for i in [text.index("▁") - 1] if i >= 0)
        cuts = [[match.start() for match in cut.finditer(text)] for cut in found]
        assert cuts[0] == cuts[1]
        if "\0" not in text:
            assert cuts[0] == cuts[2]
            if text.count("▁") == 1:
                assert cuts[0] == ([] if reached else [text.index("▁")])


def test_the_lower_of_two_equal_tokens_counts_and_no_special_token_merges():
    vocabulary = kshipra.Vocabulary(["a", "a", "<s>", b"\xc3\xa9"],
                                    [NORMAL, NORMAL, CONTROL, NORMAL])
    assert [vocabulary.merged(text) for text in ("a", "é", "<s>", "b")] == [0, 3, None, None]
    assert [vocabulary.token(text) for text in ("a", "é", "<s>", "b")] == [0, 3, 2, None]
    assert vocabulary.special == {"<s>": 2}


# 3.2 Where to cut words

HAN = {kshipra.STAND_INS["Han " + kind]: kshipra.STAND_INS[kind] for kind in ("Lo", "Lm", "N", "S",
                                                                            "M", "P")}


def test_classes_do_not_depend_on_the_python():
    """Every Python knows Unicode 13; what it does not know, the table adds."""
    for code in [*range(0x32400), *range(0xE0000, 0xE0200), 0x10FFFF]:
        category = unicodedata.category(chr(code))
        stand_in = kshipra.stand_in(code)
        if stand_in in HAN:                     # another character of the same class
            stand_in = HAN[stand_in]
            assert category in ("Lo", "Lm", "Nl", "So", "Cn", "Mc", "Po"), hex(code)
        if code < 128:
            assert stand_in == chr(code)
        elif category in ("Lu", "Ll", "Lt", "Lm", "Lo"):
            assert stand_in == kshipra.STAND_INS[category], hex(code)
        elif category[0] in "MNP":
            assert stand_in == kshipra.STAND_INS[category[0]], hex(code)


def test_the_table_of_newer_characters_is_that_of_unicode_15_1():
    newer = kshipra.newer_classes()
    assert len(newer) == 5734
    if unicodedata.unidata_version != "15.1.0":
        pytest.skip("this Python has another Unicode; only the count was checked")
    assert all(unicodedata.category(chr(code)).startswith(newer[code]) for code in newer)


@pytest.mark.parametrize("c, white", [
    *((c, True) for c in "\t\n\v\f\r \x85\xa0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000"),
    *((c, False) for c in "\x1c\x1d\x1e\x1f\u180e\u200b\u2060\ufeff\0\x7f\u0378")])
def test_white_space_is_that_of_unicode(c, white):
    """str.isspace and re's \\s also take 1C to 1F."""
    pattern, _ = kshipra.compile_pattern(r"\s")
    assert bool(pattern.match(kshipra.stand_in(ord(c)))) == white


# The text of fault P10, cut by hand along each rule.
P10_TEXT = "3.14 don't  \n\n\t\tx 1234567 I'LL Café — 😊"
P10_WORDS = {
    "gpt-2": ["3", ".", "14", " don", "'t", "  \n\n\t", "\t", "x", " 1234567", " I", "'", "LL",
        " Café", " —", " 😊"],
    "llama-bpe": ["3", ".", "14", " don", "'t", "  \n\n", "\t", "\tx", " ", "123", "456", "7",
        " I", "'LL", " Café", " —", " 😊"],
    "qwen2": ["3", ".", "1", "4", " don", "'t", "  \n\n", "\t", "\tx", " ", "1", "2", "3", "4",
        "5", "6", "7", " I", "'LL", " Café", " —", " 😊"],
    "smollm": ["3", ".", "1", "4", " don", "'t", "  \n\n\t", "\t", "x", " ", "1", "2", "3", "4",
        "5", "6", "7", " I", "'", "LL", " Café", " —", " 😊"],
    "default": ["3", ".", "14", " don", "'", "t", "  \n\n\t", "\t", "x", " ", "123", "456", "7",
        " I", "'", "LL", " Café", " ", "—", " 😊"],
    "gpt-4o": ["3", ".", "14", " don't", "  \n\n", "\t", "\tx", " ", "123", "456", "7", " I'LL",
        " Café", " —", " 😊"],
    "deepseek-coder": ["3", ".", "1", "4", " don", "'", "t", "  ", "\n", "\n", "\t", "\tx", " ",
        "1", "2", "3", "4", "5", "6", "7", " I", "'", "LL", " Café", " ", "—", " 😊"],
    "falcon": ["3", ".", "14", " don", "'", "t", "  \n\n\t", "\t", "x", " ", "123", "456", "7",
        " I", "'", "LL", " Café", " ", "—", " 😊"],
    "qwen35": ["3", ".", "1", "4", " don", "'t", "  \n\n", "\t", "\tx", " ", "1", "2", "3", "4",
        "5", "6", "7", " I", "'LL", " Café", " —", " 😊"],
    "jais-2": ["3", ".", "14", " don", "'t", "  \n\n", "\t", "\tx", " ", "123", "456", "7",
        " I", "'LL", " Café", " —", " 😊"],
    "kimi-k2": ["3", ".", "14", " don't", "  \n\n", "\t", "\tx", " ", "123", "456", "7", " I'LL",
        " Café", " —", " 😊"],
    "bloom": ["3", ".", "14", " don't", "  \n\n\t\t", "x", " 1234567", " I'LL", " Café", " —",
        " 😊"],
    "viking": ["3", ".", "1", "4", " don't", "  \n\n\t\t", "x", " ", "1", "2", "3", "4", "5", "6",
        "7", " I'LL", " Café", " —", " 😊"],
    # Its second rule takes letters too, since they lie between ":" and "~".
    "deepseek-llm": ["3", ".", "14", " don", "'", "t", "  ", "\n", "\n", "\t", "\tx", " ",
        "1234567", " I", "'", "LL", " Caf", "é", " ", "—", " 😊"],
    "deepseek-v3": ["3", ".", "14", " don", "'t", "  \n\n", "\t", "\tx", " ", "123", "456", "7",
        " I", "'LL", " Café", " —", " 😊"],
}


@pytest.mark.parametrize("pre", P10_WORDS)
def test_p10_each_rule_cuts_its_own_words(pre):
    assert kshipra.cut_words(P10_TEXT, kshipra.PRE_TOKENIZERS[pre]) == P10_WORDS[pre]


@pytest.mark.parametrize("pre, words", [
    ("qwen2", ["क", "ि", " ।\n", "x"]), ("qwen35", ["कि", " ।\n", "x"]),
    ("seed-coder", ["क", "ि", " ।", "\n", "x"])])
def test_p10_marks_and_line_ends_go_where_the_rule_has_them(pre, words):
    assert kshipra.cut_words("कि ।\nx", kshipra.PRE_TOKENIZERS[pre]) == words


def test_p10_kimi_cuts_chinese_from_other_letters():
    """Ideographs, the sign that repeats one and the zero; Hiragana, Hangul are other letters."""
    assert kshipra.cut_words("abc中々〇ひら한x⼀!", kshipra.PRE_TOKENIZERS["kimi-k2"]) == [
        "abc", "中々〇", "ひら한x", "⼀", "!"]


def test_p10_the_letters_of_two_cases():
    """As many as deepseek-llm's expression lists; the check sum is of its text."""
    pattern, _ = kshipra.compile_pattern(kshipra.DEEPSEEK_LETTERS)
    assert sum(bool(pattern.fullmatch(chr(c))) for c in range(0x110000)) == 2729
    assert zlib.crc32(kshipra.DEEPSEEK_LETTERS.encode()) == 2512842122


@pytest.mark.parametrize("spelt, same", [
    (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|"
     r"\s+(?!\S)|\s+", kshipra.QWEN2),
    (r" ?[^(\s|[.,!?…。，、।۔،])]+", kshipra.BLOOM),
    (kshipra.SEED.replace(r"|\p{N}|", r"|\p{N}{1}|").replace(r"\r\n", "\r\n"), kshipra.SEED),
    ("(a+)+b", None), (5, None), (None, None)])
def test_an_expression_is_known_in_other_spellings_too(spelt, same):
    assert kshipra.known_pattern(spelt) == same


@pytest.mark.parametrize("pre", ["qwen2", "qwen35", "command-r", "stablelm2", "mpt"])
def test_the_normal_form_that_a_family_was_trained_on(pre):
    """Marks that are typed apart become one character, as tokenizer.json of these says."""
    tokenizer = kshipra.tokenizer_from_gguf(byte_level(pre=pre))
    assert tokenizer.encode("e\u0301") == tokenizer.encode("é")
    plain = kshipra.tokenizer_from_gguf(byte_level(pre="llama-bpe"))
    assert plain.encode("e\u0301") != plain.encode("é")


@given(text=TEXT)
def test_cutting_loses_nothing(text):
    for patterns in kshipra.PRE_TOKENIZERS.values():
        words = kshipra.cut_words(text, patterns)
        assert "".join(words) == text and "" not in words


@given(text=st.lists(st.sampled_from("a\u0300\u0323\u0345\u0344\u0f73\u0f71é中"), max_size=90),
       form=st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]))
def test_normalize_equals_the_library(text, form):
    assert kshipra.normalize(form, "".join(text)) == unicodedata.normalize(form, "".join(text))


# 3.3 and 3.4: known answers

@pytest.mark.parametrize("name", VOCABULARIES)
def test_upstream_vectors(vocabulary, name):
    """llama.cpp's own vectors."""
    tokenizer, vectors = vocabulary(name)
    for case in vectors("upstream")["cases"]:
        assert tokenizer.encode(case["text"], False, False) == case["ids"], case["text"]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_extra_vectors(vocabulary, name):
    tokenizer, vectors = vocabulary(name)
    for case in vectors("extra")["cases"]:
        text, ids = case["text"], case["ids"]
        # Where llama.cpp leaves normal form C out, we do as the model's own tokenizer does.
        wanted = case.get("hf_tokenizers_ids", ids)
        assert tokenizer.encode(text, False, True) == wanted, case["name"]
        assert tokenizer.encode(text, False, False) == case.get("ids_parse_special_off", wanted)
        # llama.cpp takes spaces before punctuation away in some families; we never do.
        assert tokenizer.decode(ids, special=True) in (text, case.get("detokenized"))


@pytest.mark.parametrize("name", VOCABULARIES)
def test_pieces(vocabulary, name):
    tokenizer, vectors = vocabulary(name)
    for piece in vectors("pieces")["pieces"]:
        expected = piece["text"].encode() if "text" in piece else bytes.fromhex(piece["hex"])
        assert tokenizer.piece(piece["id"]) == expected


def test_every_file_of_every_model_gives_the_same_ids(shared):
    for place in sorted((shared / "fixtures" / "models").iterdir()):
        cases = json.loads((place / "cases.json").read_text())["cases"]
        (case,) = [case for case in cases if case.get("text") is not None]
        for path in [*place.glob("*.gguf"), *place.glob("hf*")]:
            tokenizer = kshipra.load_tokenizer(path)
            assert tokenizer.encode(case["text"]) == case["ids"], path
            assert tokenizer.decode(case["ids"]) == case["text"], path


def test_demo_prompts(shared):
    tokenizer = kshipra.load_tokenizer(shared / "demo" / "demo-q4_0.gguf")
    for case in json.loads((shared / "demo" / "expected.json").read_text())["prompts"]:
        assert tokenizer.encode(case["prompt"]) == case["prompt_ids"]


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes(small):
    tokenizer = small["sentencepiece"]
    pieces = [tokenizer.piece(i) for i in tokenizer.encode("the cat and  é€")]
    assert pieces == [b"<s>", b" the", b" ", b"c", b"a", b"t", b" and", b"  ", "é".encode(),
                      b"\xe2", b"\x82", b"\xac"]


def test_unknown_token_stands_for_a_character_without_bytes():
    metadata = sentencepiece(["a", SPACE], unknown_token_id=0)
    for i in range(3, 259):
        metadata["tokenizer.ggml.token_type"][i] = UNUSED
    for i in range(256):                        # no byte, by its text either
        metadata["tokenizer.ggml.tokens"][i + 3] = f"[PAD{i}]"
    assert kshipra.tokenizer_from_gguf(metadata).encode("a€", False) == [260, 259, 0]
    del metadata["tokenizer.ggml.unknown_token_id"]             # then it is 0 all the same
    tokenizer = kshipra.tokenizer_from_gguf(metadata)
    assert tokenizer.encode("a€", False) == [260, 259, 0]
    tokenizer.model.unknown_id = None                           # a tokenizer.json without
    with pytest.raises(KshipraError, match="no token for '€'"):
        tokenizer.encode("€")


# Properties

@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXT)
def test_p11_decode_gives_the_text_back(small, kind, text):
    """SPACE itself is the exception: SentencePiece cannot tell it from a space."""
    tokenizer, expected = small[kind], text
    if kind == "sentencepiece":
        expected = text.replace(SPACE, " ")
    for add_special in (True, False):
        assert tokenizer.decode(tokenizer.encode(text, add_special, False)) == expected


@given(text=TEXT)
def test_demo_tokenizer_gives_the_text_back(demo, text):
    assert demo.decode(demo.encode(text, parse_special=False)) == text


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text())
def test_surrogates_become_replacement_marks(small, kind, text):
    text += "\ud83d"
    whole = small[kind].decode(small[kind].encode(text))
    assert whole == small[kind].decode(small[kind].encode(text.replace("\ud83d", "\ufffd")))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_p15_stream_pieces_join_to_decode(small, kind, data):
    """For any ids, of any characters cut anywhere, special ones included."""
    tokenizer = small[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.n_vocab + 3)))
    stream = kshipra.TextStream(tokenizer, at_start=True)
    pieces = [stream.push(i) for i in ids] + [stream.flush()]
    assert "".join(pieces) == tokenizer.decode(ids)
    stream = tokenizer.stream()
    pieces = [stream.push(i) for i in ids] + [stream.flush()]
    raw = b"".join(tokenizer.piece(i) for i in ids if i not in tokenizer._control)
    if tokenizer.bos_id not in ids[:1]:
        assert "".join(pieces) == raw.decode("utf-8", "replace")


@pytest.mark.parametrize("kind", KINDS)
@given(parts=st.lists(st.text("abcdé", min_size=1), min_size=1))
def test_p13_cutting_at_safe_points_changes_nothing(small, kind, parts):
    """Between a letter and the space of the next word no rule of ours looks across."""
    tokenizer = small[kind]
    cut = tokenizer.encode(parts[0])
    for part in parts[1:]:
        if kind == "sentencepiece":             # it adds the space itself
            cut += tokenizer.encode(part, False)
        else:
            cut += tokenizer.encode(" " + part, False)
    assert tokenizer.encode(" ".join(parts)) == cut


@given(text=st.text("ab > \nx"))
def test_sentencepiece_words_are_cut_where_nothing_merges(small, text):
    """Merging word by word is merging the whole, also for a token with a space inside."""
    model = small["sentencepiece"].model
    whole = "".join(model.words(text, True))
    assert [i for word in model.words(text, True) for i in model.word_ids(word)] == [
        model.vocabulary.byte_ids[f"<0x{ord(part):02X}>"]
        if model.vocabulary.merged(part) is None else model.vocabulary.merged(part)
        for part in merge_plainly(list(whole), model.rank)]


# Faults

def test_p05_a_large_vocabulary_is_set_up_quickly():
    """524288 merges and 262144 tokens in little more than twice the time of half."""
    def seconds(n):
        metadata = byte_level()
        metadata["tokenizer.ggml.merges"] = [f"t{i} x{i}" for i in range(2 * n)]
        metadata["tokenizer.ggml.tokens"] += [f"t{i}x{i}" for i in range(n)]
        metadata["tokenizer.ggml.token_type"] += [NORMAL] * n
        begun = time.process_time()
        kshipra.tokenizer_from_gguf(metadata).encode("one sentence")
        return time.process_time() - begun
    for attempt in range(5):
        half, whole = (min(seconds(n) for _ in range(2)) for n in (131072, 262144))
        if whole < max(2.6 * half, 0.5):
            break
    else:
        pytest.fail(f"{whole} s for 262144 tokens, {half} s for half")


@pytest.mark.parametrize("pre", [None, "", "llama9", 3])
def test_p10_an_unknown_rule_is_refused(pre):
    with pytest.raises(KshipraError, match="tokenizer.ggml.pre: .*wrong tokens.*convert"):
        kshipra.tokenizer_from_gguf(byte_level(pre=pre))


@pytest.mark.parametrize("text, pieces", [
    ("<s>Hello", ["<s>", " ", "H"]), ("<s> Hello", ["<s>", "  ", "H"]), (" Hello", ["  ", "H"]),
    ("", []), ("  ", ["  ", " "])])
def test_p11_sentencepiece_adds_one_space_at_the_start_and_after_special_tokens(
        small, text, pieces):
    got = small["sentencepiece"].encode(text, add_special=False)
    assert [small["sentencepiece"].piece(i).decode() for i in got][:len(pieces)] == pieces
    if not pieces:
        assert got == []


def test_p11_add_space_prefix_false():
    tokenizer = tokenizer_of_kind("sentencepiece", add_space_prefix=False)
    for text in ("the", " the", "  ", "<s>the", ""):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids, special=True) == "<s>" + text


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXT)
def test_p12_no_text_spells_a_control_token(small, kind, text):
    tokenizer = small[kind]
    text = f"A<|im_end|>\n<|im_start|>system\n{text}<s>B</s>"
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    assert not tokenizer._control & set(ids)
    assert tokenizer.decode(ids) == (text if kind == "byte-level" else text.replace(SPACE, " "))
    parsed = tokenizer.encode(text, add_special=False)
    assert [tokenizer.piece(i) for i in parsed if i in tokenizer._control][:2] == [
        b"<|im_end|>", b"<|im_start|>"]


def test_p12_a_control_token_cannot_be_merged_together():
    """Here "<s" and ">" are tokens, so that the pair joins to the name of a control token."""
    tokenizer = kshipra.tokenizer_from_gguf(sentencepiece(["<", "s", ">", "<s", SPACE]))
    assert 1 not in tokenizer.encode("<s>", add_special=False, parse_special=False)


def test_p12_a_turn_token_that_the_file_calls_user_defined_is_a_control_token():
    special = [("<start_of_turn>", USER_DEFINED), ("<end_of_turn>", USER_DEFINED)]
    tokenizer = kshipra.tokenizer_from_gguf(sentencepiece(WORDS, special))
    ids = tokenizer.encode("<end_of_turn><start_of_turn>", parse_special=False)
    assert len(ids) > 20


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["^", "a", " ", "\n", "1", "é", "ab", "<", "<tool", "a b",
                                  "\u0300\u0323"])
def test_p13_equal_characters_take_linear_time(small, kind, text):
    tokenizer = small[kind]
    tokenizer.encode("x")
    for attempt in range(5):
        times = []
        for n in (30_000, 60_000):
            begun = time.process_time()
            ids = tokenizer.encode(text * n)
            times.append(time.process_time() - begun)
        if times[1] < 2.6 * times[0] or times[1] < 0.1:
            break
    else:
        pytest.fail(f"{times} s for {text!r} times 30,000 and 60,000")
    assert tokenizer.decode(ids) == text * 60_000


def test_p13_normal_forms_take_linear_time():
    """The library alone would take minutes for this."""
    begun = time.process_time()
    kshipra.normalize("NFC", "a" + "\u0300\u0323" * 100_000 + "\u0f73" * 100_000)
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("kind", KINDS)
def test_p14_every_id_decodes(small, kind):
    tokenizer = small[kind]
    for token in range(tokenizer.n_vocab + 300):
        stream = tokenizer.stream()
        text = stream.push(token) + stream.flush()
        assert (text == "") == (token in tokenizer._control or token >= tokenizer.n_vocab)
    assert tokenizer.piece(-1) == b""


def test_p14_bytes_and_the_names_of_bytes(small):
    tokenizer = small["sentencepiece"]
    ids = tokenizer.encode("😊", add_special=False)
    assert [tokenizer.piece(i) for i in ids] == [b" ", b"\xf0", b"\x9f", b"\x98", b"\x8a"]
    typed = tokenizer.encode("<0xF0>", add_special=False)
    assert tokenizer.vocabulary.byte_ids["<0xF0>"] not in typed
    assert tokenizer.decode(typed) == "<0xF0>"
    odd = sentencepiece()
    odd["tokenizer.ggml.tokens"][3] = "<0xZZ>"              # of type BYTE
    assert kshipra.tokenizer_from_gguf(odd).piece(3) == b"<0xZZ>"


@pytest.mark.parametrize("text", ["é", "歪", "😊", "👩\u200d👩\u200d👧"])
def test_p15_a_character_comes_whole(text):
    tokenizer = kshipra.tokenizer_from_gguf(byte_level())
    stream, seen = tokenizer.stream(), ""
    for token in tokenizer.encode(text):
        piece = stream.push(token)
        assert "\ufffd" not in piece and text.startswith(seen + piece)
        seen += piece
    assert seen == text and stream.flush() == ""


def test_p15_bytes_that_are_no_character_become_one_mark_each_once_it_is_certain():
    tokenizer = kshipra.tokenizer_from_gguf(byte_level())
    ids = {bytes(tokenizer.piece(i)): i for i in range(256)}
    stream = tokenizer.stream()
    pushed = [stream.push(ids[bytes((byte,))]) for byte in b"a\xf0\x9fb\xffc\xe6\xad"]
    assert pushed == ["a", "", "", "\ufffdb", "\ufffd", "c", "", ""]
    assert stream.flush() == "\ufffd" and stream.flush() == ""


def test_a_stream_goes_on_from_a_prompt(small):
    """The space of the first word stays, unless the ids begin with BOS."""
    tokenizer = small["sentencepiece"]
    ids = tokenizer.encode("the and")
    stream = tokenizer.stream()
    assert "".join(stream.push(i) for i in ids) == "the and"
    stream = tokenizer.stream()
    assert "".join(stream.push(i) for i in ids[1:]) == " the and"


@pytest.mark.parametrize("special, keys, stops", [
    ([("<|endoftext|>", CONTROL), ("<|im_end|>", CONTROL)], {"eos_token_id": 256},
     ["<|endoftext|>", "<|im_end|>"]),
    ([("<eos>", CONTROL), ("<end_of_turn>", USER_DEFINED)], {"eos_token_id": 256},
     ["<eos>", "<end_of_turn>"]),
    ([("<|endoftext|>", CONTROL), ("<|end|>", CONTROL), ("<|user|>", CONTROL)], {},
     ["<|endoftext|>", "<|end|>"]),
    ([("<|end_of_text|>", CONTROL), ("<|eot_id|>", CONTROL), ("<|eom_id|>", CONTROL),
      ("<|start_header_id|>", CONTROL)], {}, ["<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"]),
    ([("<|return|>", CONTROL), ("<|end|>", CONTROL), ("<|call|>", CONTROL),
      ("<|channel|>", CONTROL)], {}, ["<|return|>", "<|call|>"]),
    ([("[one]", CONTROL), ("[two]", CONTROL), ("[three]", CONTROL)],
     {"eos_token_id": 256, "eot_token_id": 257, "eom_token_id": 258},
     ["[one]", "[two]", "[three]"]),
    ([("<|im_end|>", NORMAL)], {}, ["<|im_end|>"]),
])
def test_p17_the_metadata_alone_give_the_stop_tokens(special, keys, stops):
    tokenizer = kshipra.tokenizer_from_gguf(byte_level(special, **keys))
    assert sorted(tokenizer.piece(i).decode() for i in tokenizer.stop_ids) == sorted(stops)
    assert not any(tokenizer.decode([i]) for i in tokenizer.stop_ids)


@pytest.mark.parametrize("make, default", [
    (lambda **keys: sentencepiece(**keys), True),
    (lambda **keys: byte_level([("<s>", CONTROL)], bos_token_id=256, **keys), False),
    (lambda **keys: byte_level([("<s>", CONTROL)], pre="llama-bpe", bos_token_id=256, **keys),
     True)])
@pytest.mark.parametrize("add_bos", [True, False, None])
def test_p18_bos_is_added_once_or_not_at_all(make, default, add_bos):
    tokenizer = kshipra.tokenizer_from_gguf(make(add_bos_token=add_bos))
    wanted = default if add_bos is None else add_bos
    assert tokenizer.add_bos == wanted
    assert tokenizer.encode("x").count(tokenizer.bos_id) == wanted
    assert tokenizer.encode("x", add_special=False).count(tokenizer.bos_id) == 0
    assert tokenizer.encode("<s>x", add_special=False).count(tokenizer.bos_id) == 1


def test_add_eos():
    tokenizer = kshipra.tokenizer_from_gguf(sentencepiece(WORDS, add_eos_token=True))
    assert tokenizer.encode("a")[-1] == 2 and tokenizer.encode("a", add_special=False)[-1] != 2


# Kinds of faults that users of other engines reported (R), or that an attack found (F).

def test_r01_the_name_of_a_byte_is_a_byte_whatever_its_type():
    good = kshipra.tokenizer_from_gguf(sentencepiece(WORDS))
    for types in ([NORMAL] * 256, [USER_DEFINED] * 256, [UNUSED] * 256, None):
        metadata = sentencepiece(WORDS)
        if types is None:
            del metadata["tokenizer.ggml.token_type"]
        else:
            metadata["tokenizer.ggml.token_type"][3:259] = types
        tokenizer = kshipra.tokenizer_from_gguf(metadata)
        for text in ("Hi\nx", "€ the", "<0x0A>"):
            assert tokenizer.encode(text) == good.encode(text)
        assert tokenizer.decode(tokenizer.encode("€\n")) == "€\n"
        assert tokenizer.stop_ids == {2} and tokenizer.decode([1, 2]) == ""


@pytest.mark.parametrize("text", sorted(kshipra.CONTROL_TEXTS))
@pytest.mark.parametrize("kind", [NORMAL, USER_DEFINED, UNUSED])
def test_r03_a_known_control_text_is_control_whatever_its_type(text, kind):
    metadata = byte_level([("<|endoftext|>", CONTROL), (text, kind)], eos_token_id=256)
    tokenizer = kshipra.tokenizer_from_gguf(metadata)
    token = tokenizer.vocabulary.token(text)
    assert tokenizer.encode(f"a{text}b")[1] == token
    assert token not in tokenizer.encode(text, parse_special=False)
    assert tokenizer.decode([token]) == ""
    assert (token in tokenizer.stop_ids) == (text in kshipra.STOP_TEXTS)


@pytest.mark.parametrize("name, kind, control", [
    ("[one]", NORMAL, True), ("<one>", UNUSED, True), ("one", USER_DEFINED, True),
    ("!", NORMAL, False), ("<0x0A>", BYTE, False)])
def test_r03_what_the_file_names_as_an_end_is_control_unless_it_is_a_word(name, kind, control):
    """Converters that know no end write its number as 0, which is a word: "!" for many."""
    metadata = byte_level([(name, kind)], eos_token_id=256)
    tokenizer = kshipra.tokenizer_from_gguf(metadata)
    assert 256 in tokenizer.stop_ids
    assert (256 in tokenizer._control) == control
    if control:
        assert tokenizer.encode(name) == [256] and tokenizer.decode([256]) == ""
        assert 256 not in tokenizer.encode(name, parse_special=False)


def test_r03_the_end_of_a_text_beside_its_beginning():
    """Gemma has both of these as words of HTML."""
    for kinds, stops in (((CONTROL, NORMAL), {257}), ((NORMAL, CONTROL), {257}),
                         ((NORMAL, NORMAL), set()), ((USER_DEFINED, USER_DEFINED), set())):
        special = [("<s>", kinds[0]), ("</s>", kinds[1])]
        assert kshipra.tokenizer_from_gguf(byte_level(special)).stop_ids == stops


ADDED = {"512": {"content": "<|im_end|>", "special": True},
         "513": {"content": "<tool>", "special": False, "rstrip": True}}


def directory_of(kind, place, **files):
    """A directory with 512 tokens and more in `files`: tokenizer.json, vocab.json or .model."""
    words = [f"word{i}" for i in range(512)]
    if kind == "tokenizer.model":
        (place / kind).write_bytes(sentencepiece_model(words[259:]))
        return hf_directory(place, **files)
    vocab = {text: i for i, text in enumerate([*kshipra.BYTE_TO_CHAR.values(), *words[256:]])}
    if kind == "tokenizer.json":
        return hf_directory(place, tokenizer_json(vocab=vocab, added_tokens=[]), **files)
    (place / "merges.txt").write_text("")
    files["tokenizer_config"] = {"tokenizer_class": "GPT2Tokenizer",
                                 **files.get("tokenizer_config", {})}
    return hf_directory(place, vocab=vocab, **files)


@pytest.mark.parametrize("kind", ["tokenizer.json", "vocab.json", "tokenizer.model"])
@pytest.mark.parametrize("files", [
    {"tokenizer_config": {"added_tokens_decoder": ADDED, "eos_token": "<|im_end|>"}},
    {"added_tokens": {"<|im_end|>": 512, "<tool>": 513},
     "special_tokens_map": {"eos_token": {"content": "<|im_end|>"}}},
    {"added_tokens": {"<|im_end|>": 512, "<tool>": 513},
     "tokenizer_config": {"eos_token": "<|im_end|>"}, "generation_config": {"eos_token_id": 7}}])
def test_r04_added_tokens_are_read_wherever_they_stand(tmp_path, kind, files):
    tokenizer = kshipra.load_tokenizer(directory_of(kind, tmp_path, **dict(files)))
    assert (tokenizer.n_vocab, tokenizer.eos_id) == (514, 512)
    assert tokenizer.stop_ids >= {512}
    ids = tokenizer.encode("<tool> <|im_end|>", add_special=False)
    assert (ids[0], ids[-1]) == (513, 512)
    assert 512 not in tokenizer.encode("<|im_end|>", parse_special=False)
    if "added_tokens_decoder" in files.get("tokenizer_config", {}):
        assert ids == [513, 512]                    # <tool> takes the space behind it away


@pytest.mark.parametrize("kind", ["tokenizer.json", "vocab.json", "tokenizer.model"])
@pytest.mark.parametrize("key", ["eos_token", "bos_token"])
def test_r04_an_end_without_an_id_is_refused(tmp_path, kind, key):
    directory_of(kind, tmp_path, tokenizer_config={key: "<|nowhere|>"})
    with pytest.raises(KshipraError, match=key + " is '<.nowhere.>', which has no id in any file"):
        kshipra.load_tokenizer(tmp_path)


def test_r04_a_beginning_that_is_wanted_but_not_named_is_refused(tmp_path):
    directory_of("tokenizer.json", tmp_path, tokenizer_config={"add_bos_token": True})
    with pytest.raises(KshipraError, match="begin with BOS, but no file says which"):
        kshipra.load_tokenizer(tmp_path)


def one_token_more(kind):
    def change(metadata, tensors):
        for key, value in (("tokens", "<image>"), ("token_type", kind)):
            metadata["tokenizer.ggml." + key] = [*metadata["tokenizer.ggml." + key], value]
    return change


def test_r05_a_token_without_a_row_is_never_made_and_never_taken(tmp_path):
    path = tiny.write(tmp_path / "m.gguf", change=one_token_more(CONTROL))
    model = kshipra.load(path, device="python")
    assert model.tokenizer.n_vocab == model.hparams.n_vocab + 1
    assert max(model.generate_ids("a", 40, temperature=50.0, seed=3)) < tiny.N_TOKENS
    with pytest.raises(KshipraError, match=f"{tiny.N_TOKENS}"):
        list(model.generate("a<image>", max_tokens=1))
    path = tiny.write(tmp_path / "m.gguf", change=one_token_more(NORMAL))
    with pytest.raises(KshipraError, match="do not belong together"):
        kshipra.load(path, device="python")


def test_r06_no_end_behind_a_prompt_that_is_to_go_on(small):
    tokenizer = tokenizer_of_kind("sentencepiece", add_eos_token=True)
    assert tokenizer.encode("a") == [*tokenizer.encode_prompt("a"), 2]
    assert tokenizer.encode_prompt("a")[0] == 1 and tokenizer.encode_prompt("") == [1]
    assert tokenizer.encode_prompt("<s>a").count(1) == 1
    for tokenizer in small.values():
        assert tokenizer.encode_prompt("the") == tokenizer.encode("the")


@pytest.mark.parametrize("first, bos, eos", [
    (["<unk>", "<s>", "</s>"], 1, 2), (["<pad>", "<eos>", "<bos>"], 2, 1)])
def test_r11_sentencepiece_without_ids_has_those_of_its_trainer(first, bos, eos):
    metadata = sentencepiece(WORDS, bos_token_id=None, eos_token_id=None)
    metadata["tokenizer.ggml.tokens"][:3] = first
    tokenizer = kshipra.tokenizer_from_gguf(metadata)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.stop_ids) == (bos, eos, {eos})
    assert tokenizer.encode("a")[0] == bos
    assert kshipra.tokenizer_from_gguf(
        {"tokenizer.ggml." + key: value for key, value in (
            ("model", "llama"), ("tokens", ["a"]), ("scores", [0.0]))}).bos_id is None


def test_f08_padding_is_never_made_in_either_form(tmp_path):
    """A directory leaves padding out; a GGUF calls it unused."""
    def pad(metadata, tensors):
        metadata["tokenizer.ggml.token_type"] = [NORMAL] * 200 + [UNUSED] * 50 + [NORMAL] * 4 + [
            UNUSED] * 5
        metadata["tokenizer.ggml.tokens"][254:] = [f"[PAD{i}]" for i in range(5)]
        for key in ("bos_token_id", "eos_token_id", "add_bos_token"):
            del metadata["tokenizer.ggml." + key]
    model = kshipra.load(tiny.write(tmp_path / "m.gguf", change=pad), device="python")
    assert (model.tokenizer.n_vocab, model.tokenizer.n_used) == (259, 254)
    ids = list(model.generate_ids("a", 80, temperature=100.0, seed=1, ignore_eos=True))
    assert max(ids) < 254 and len(ids) == 80
    vocabulary = kshipra.Vocabulary(["a", "b"], [UNUSED, UNUSED])
    assert kshipra.Tokenizer(kshipra.ByteLevel(vocabulary, None, ())).n_used == 2


@pytest.mark.parametrize("text", ["\ud800", "a\udc80", "\udfff"])
def test_f10_half_a_character_in_a_vocabulary_is_refused(tmp_path, text):
    for files in ({"root": tokenizer_json(vocab={"a": 0, text: 1}, added_tokens=[])},
                  {"root": tokenizer_json(added_tokens=[{"id": 0, "content": text}])},
                  {"root": tokenizer_json(), "added_tokens": {text: 280}}):
        with pytest.raises(KshipraError, match="half a character"):
            kshipra.load_tokenizer(hf_directory(tmp_path, **files))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt",
                                  "tokenizer_config.json", "added_tokens.json"])
def test_f11_f12_small_files_that_are_huge_or_unreadable_are_refused(tmp_path, monkeypatch, name):
    directory_of("tokenizer.model" if name == "tokenizer.model" else "vocab.json", tmp_path)
    (tmp_path / name).write_text("x")

    def unreadable(path, mode):
        if path.endswith(name):
            raise PermissionError(13, "Permission denied")
        return open(path, mode)
    monkeypatch.setattr(kshipra, "open", unreadable, raising=False)
    with pytest.raises(KshipraError, match=f"{name}: cannot be read: Permission denied"):
        kshipra.load_tokenizer(tmp_path)
    monkeypatch.delattr(kshipra, "open")
    with open(tmp_path / name, "wb") as file:
        file.truncate(kshipra._MAX_JSON_BYTES + 1)
    with pytest.raises(KshipraError, match=f"{name} is larger than"):
        kshipra.load_tokenizer(tmp_path)


def test_white_space_beside_added_tokens_is_that_of_the_tokenizers_library(tmp_path):
    """Recorded from tokenizers 0.23.3: Unicode's white space, so not U+001C to U+001F."""
    white = [*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
             0x202F, 0x205F, 0x3000]
    n = len(tokenizer_json()["model"]["vocab"])
    added = [{"id": n, "content": "<l>", "special": True, "lstrip": True},
             {"id": n + 1, "content": "<r>", "special": True, "rstrip": True}]
    tokenizer = kshipra.load_tokenizer(hf_directory(tmp_path, tokenizer_json(added_tokens=added)))
    found = [c for c in range(0x3100) if len(tokenizer.encode(f"<r>{chr(c)}x")) == 2]
    assert found == white
    found = [c for c in range(0x3100) if len(tokenizer.encode(f"x{chr(c)}<l>")) == 2]
    assert found == white
    phi3 = kshipra.tokenizer_from_gguf({**sentencepiece(WORDS, [("<|user|>", CONTROL)]),
                                        "general.name": "Phi-3"})
    ids = phi3.encode("<|user|>\u3000\x85\u2007a", False)
    assert ids == phi3.encode("<|user|>a", False) and ids[0] == phi3.n_vocab - 1


# The same over every vocabulary of the fixtures: P11 to P14 (P10 and P15 need no vocabulary).

@pytest.mark.parametrize("name", VOCABULARIES)
def test_p11_to_p14_in_every_vocabulary(vocabulary, name):
    tokenizer, _ = vocabulary(name)
    spm = isinstance(tokenizer.model, kshipra.SentencePiece)
    special = sorted(tokenizer.vocabulary.special)[:40]
    rng = random.Random(7)
    for _ in range(60):
        words = rng.choices(["the", " ", "  ", "\n", "1234", "é", "中文", "😊", "\0", "'s",
                             *special], k=9)
        text = "".join(words)
        ids = tokenizer.encode(text, parse_special=False)
        assert not tokenizer._control & {*ids[1:]}, text
        back = tokenizer.decode(ids)
        if not tokenizer._strips:
            assert back == (text.replace(SPACE, " ") if spm else text)
    for token in range(tokenizer.n_vocab):
        piece = tokenizer.piece(token)
        assert piece or tokenizer.vocabulary.types[token] == UNUSED
    for text in ("^", " ", "é", "ab "):
        for attempt in range(4):
            times = []
            for n in (10_000, 20_000):
                begun = time.process_time()
                tokenizer.encode(text * n)
                times.append(time.process_time() - begun)
            if times[1] < 2.6 * times[0] or times[1] < 0.1:
                break
        else:
            pytest.fail(f"{times} s for {text!r} times 10,000 and 20,000")


# Refusals of GGUF metadata

@pytest.mark.parametrize("key, value, message", [
    ("model", None, "tokenizer.ggml.model: None is not supported"),
    ("model", 7, "tokenizer.ggml.model: 7 is not supported"),
    ("model", "bert", "tokenizer.ggml.model: 'bert' is not supported"),
    ("tokens", None, "tokenizer.ggml.tokens: an array is needed, but None"),
    ("tokens", "abc", "tokenizer.ggml.tokens: an array is needed, but 'abc'"),
    ("tokens", [1, 2], "tokenizer.ggml.tokens: an array of str is needed"),
    ("tokens", ["a"], "token_type: length 259, but there are 1 tokens"),
    ("token_type", [99] * 259, "token_type: types \\[99\\]"),
    ("token_type", 5, "token_type: an array is needed"),
    ("scores", None, "scores: an array is needed"),
    ("scores", [0.0] * 10, "scores: length 10, but there are 259 tokens"),
    ("scores", ["x"] * 259, "scores: an array of float is needed"),
    ("bos_token_id", 999999, "bos_token_id: 999999 is no token of a vocabulary of 259"),
    ("eos_token_id", 2**32 - 1, "eos_token_id: 4294967295 is no token"),
    ("eot_token_id", -1, "eot_token_id: -1 is no token"),
    ("bos_token_id", "1", "bos_token_id: '1' is no token"),
    ("bos_token_id", None, None),
    ("add_bos_token", 1, "add_bos_token: 1 is no bool"),
])
def test_untrusted_metadata_is_refused_by_name(key, value, message):
    metadata = sentencepiece()
    metadata["tokenizer.ggml." + key] = value
    if value is None:
        del metadata["tokenizer.ggml." + key]
    if message is None:
        assert kshipra.tokenizer_from_gguf(metadata).encode("") == [1]
        return
    with pytest.raises(KshipraError, match=message):
        kshipra.tokenizer_from_gguf(metadata)


def test_bos_that_is_wanted_but_missing_is_refused():
    with pytest.raises(KshipraError, match="bos_token_id: missing"):
        kshipra.tokenizer_from_gguf(byte_level(add_bos_token=True))


def test_merges_of_the_wrong_kind():
    with pytest.raises(KshipraError, match="merges: an array of str"):
        kshipra.tokenizer_from_gguf({**byte_level(), "tokenizer.ggml.merges": [5]})
    for merges in (["nospace"], ["no such"], [b"a a"]):             # never apply
        metadata = {**byte_level(), "tokenizer.ggml.merges": merges}
        assert len(kshipra.tokenizer_from_gguf(metadata).encode("no such aa")) == 10


def test_malformed_files(malformed):
    manifest = json.loads((malformed / "manifest.json").read_text())
    for case in manifest["good"] + manifest["cases"]:
        path = malformed / case["file"]
        if path.suffix == ".safetensors":
            continue
        try:
            tokenizer = kshipra.load_tokenizer(path)
        except KshipraError as error:
            assert case not in manifest["good"], error
        else:
            assert tokenizer.decode(tokenizer.encode("ab abc")) == "ab abc"


# Hugging Face directories

def tokenizer_json(**parts):
    """Return a byte-level tokenizer.json with MERGES and two added tokens."""
    tokens = [*kshipra.BYTE_TO_CHAR.values(), *(m.replace(" ", "") for m in MERGES)]
    n = len(tokens)
    root = {
        "added_tokens": [{"id": n, "content": "<|im_end|>", "special": True},
                         {"id": n + 1, "content": "<tool>", "special": False}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "post_processor": None,
        "model": {"type": "BPE", "vocab": {text: i for i, text in enumerate(tokens)},
                  "merges": [m.split(" ") for m in MERGES]}}
    for key, value in parts.items():
        (root["model"] if key in (*root["model"], "dropout") else root)[key] = value
    return root


def hf_directory(place, root=None, **files):
    """Write tokenizer.json and other JSON files, named without .json."""
    for name, content in {"tokenizer": root, **files}.items():
        if content is not None:
            (place / f"{name}.json").write_text(json.dumps(content))
    return place


@pytest.mark.parametrize("merge", [["a", "a", "b"], ["a"], []])
def test_a_merge_of_other_than_two_parts_is_refused(tmp_path, merge):
    root = tokenizer_json()
    root["model"]["merges"].append(merge)
    with pytest.raises(KshipraError, match="merges, of other than two parts"):
        kshipra.load_tokenizer(hf_directory(tmp_path, root))


@given(text=TEXT)
@tiny.examples(10)
def test_hf_directory_equals_gguf(hf_tokenizer, text):
    special = [("<|im_end|>", CONTROL), ("<tool>", USER_DEFINED)]
    gguf = kshipra.tokenizer_from_gguf(byte_level(special, MERGES))
    assert hf_tokenizer.encode(text) == gguf.encode(text)


@pytest.fixture(scope="module")
def hf_tokenizer(tmp_path_factory):
    return kshipra.load_tokenizer(hf_directory(tmp_path_factory.mktemp("hf"), tokenizer_json()))


@pytest.mark.parametrize("pre, name", [
    ({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": kshipra.LLAMA3}, "behavior": "Isolated",
         "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]}, "llama-bpe"),
    ({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": kshipra.QWEN2}, "behavior": "Removed",
         "invert": True},
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]}, "qwen2"),
    ({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]}, "smollm")])
def test_the_rule_of_a_tokenizer_json(tmp_path, pre, name):
    root = tokenizer_json(pre_tokenizer=pre)
    tokenizer = kshipra.tokenizer_from_hf(hf_directory(tmp_path, root))
    assert tuple(tokenizer.model.patterns) == kshipra.PRE_TOKENIZERS[name]


@pytest.mark.parametrize("parts, message", [
    ({"type": "WordPiece"}, "model.type: 'WordPiece' is not supported"),
    ({"dropout": 0.5}, "model.dropout"),
    ({"normalizer": {"type": "Lowercase"}}, "normalizer: .*Lowercase"),
    ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "((["}, "behavior": "Isolated"}},
     "pre_tokenizer: .*not supported"),
    ({"pre_tokenizer": {"type": "Metaspace", "replacement": SPACE, "split": True}},
     "pre_tokenizer: .*Metaspace"),
    ({"pre_tokenizer": {"type": "BertPreTokenizer"}}, "pre_tokenizer: .*BertPreTokenizer"),
    ({"pre_tokenizer": None}, "pre_tokenizer: None"),
    ({"post_processor": {"type": "RobertaProcessing"}}, "post_processor: .*Roberta"),
    ({"vocab": {"a": -1}}, "token 'a' has id -1"),
    ({"vocab": {"a": 10**9}}, "highest id is 1000000000"),
    ({"vocab": {"a": True}}, "token 'a' has id True"),
    ({"vocab": ["a"]}, "wrong type"),
    ({"merges": 5}, "wrong type"),
    ({"added_tokens": [{"id": 0, "content": "x", "single_word": True}]}, "added_tokens"),
    ({"added_tokens": [{"id": 0}]}, "token None"),
])
def test_untrusted_tokenizer_json_is_refused(tmp_path, parts, message):
    hf_directory(tmp_path, tokenizer_json(**parts))
    with pytest.raises(KshipraError, match=message):
        kshipra.tokenizer_from_hf(tmp_path)


def test_eos_lists_and_named_tokens(tmp_path):
    n = len(tokenizer_json()["model"]["vocab"])
    hf_directory(tmp_path, tokenizer_json(), generation_config={"eos_token_id": [n + 1, 7]},
                 config={"eos_token_id": 8, "bos_token_id": 9},
                 tokenizer_config={"eos_token": {"content": "<|im_end|>"}, "add_bos_token": True})
    tokenizer = kshipra.tokenizer_from_hf(tmp_path)
    assert tokenizer.eos_id == n and tokenizer.stop_ids == {n, n + 1, 7, 8}
    assert tokenizer.encode("b") == [9, tokenizer.encode("b", add_special=False)[0]]


def test_added_tokens_strip_white_space(tmp_path):
    n = len(tokenizer_json()["model"]["vocab"])
    added = [{"id": n, "content": "<l>", "special": True, "lstrip": True},
             {"id": n + 1, "content": "<r>", "special": True, "rstrip": True}]
    root = tokenizer_json(added_tokens=added)
    tokenizer = kshipra.tokenizer_from_hf(hf_directory(tmp_path, root))
    assert tokenizer.decode(tokenizer.encode("a \n<l> b <r> \n c"), special=True) == "a<l> b <r>c"


def test_vocab_json_with_merges(tmp_path):
    root = tokenizer_json()["model"]
    hf_directory(tmp_path, vocab=root["vocab"],
                 tokenizer_config={"tokenizer_class": "GPT2Tokenizer"})
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n", "utf-8")
    gguf = kshipra.tokenizer_from_gguf(byte_level([], MERGES))
    assert kshipra.tokenizer_from_hf(tmp_path).encode(P10_TEXT) == gguf.encode(P10_TEXT)
    hf_directory(tmp_path, tokenizer_config={"tokenizer_class": "OtherTokenizer"})
    with pytest.raises(KshipraError, match="tokenizer_class: 'OtherTokenizer'"):
        kshipra.tokenizer_from_hf(tmp_path)


def test_no_tokenizer_at_all(tmp_path):
    with pytest.raises(KshipraError, match="no tokenizer: tokenizer.json"):
        kshipra.load_tokenizer(tmp_path)


def sentencepiece_model(words, model_type=2, spec=b"\x18\x01\x20\x00"):
    """Return the bytes of a tokenizer.model with the vocabulary of `sentencepiece(words)`."""
    def field(number, data):
        assert len(data) < 128
        return bytes((number << 3 | 2, len(data))) + data
    metadata = sentencepiece(words)
    out = b""
    for text, score, kind in zip(*(metadata["tokenizer.ggml." + key]
                                   for key in ("tokens", "scores", "token_type"))):
        out += field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score)
                     + bytes((0x18, kind)))
    return out + field(2, bytes((0x18, model_type))) + field(3, spec)


def test_tokenizer_model(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model(WORDS))
    hf_directory(tmp_path, config={"bos_token_id": 1, "eos_token_id": 2})
    tokenizer = kshipra.tokenizer_from_hf(tmp_path)
    gguf = kshipra.tokenizer_from_gguf(sentencepiece(WORDS))
    for text in ("", " the and", "<s>x", P10_TEXT):
        assert tokenizer.encode(text) == gguf.encode(text)
    assert (tokenizer.bos_id, tokenizer.stop_ids) == (1, {2})


@pytest.mark.parametrize("data, message", [
    (sentencepiece_model([], model_type=1), "model_type: 1 is not supported"),
    (sentencepiece_model([], spec=b"\x12\x01x"), "a character map"),
    (sentencepiece_model([], spec=b""), "a character map or the removal"),
    (b"\xff" * 20, "not a SentencePiece model"),
])
def test_tokenizer_model_that_is_not_supported(tmp_path, data, message):
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(KshipraError, match=message):
        kshipra.tokenizer_from_hf(tmp_path)


def test_tokenizer_model_cut_anywhere_is_read_or_refused(tmp_path):
    data = sentencepiece_model([])
    for end in [*range(0, 60), *range(len(data) - 30, len(data))]:
        (tmp_path / "tokenizer.model").write_bytes(data[:end])
        with pytest.raises(KshipraError):
            kshipra.tokenizer_from_hf(tmp_path)


def test_tokenizer_model_alone_equals_tokenizer_json(shared, tmp_path):
    for name in ("llama-mha", "gemma3"):
        place = shared / "fixtures" / "models" / name / "hf"
        for file in ("tokenizer.model", "tokenizer_config.json", "config.json"):
            shutil.copy(place / file, tmp_path / file)
        one, other = kshipra.tokenizer_from_hf(tmp_path), kshipra.tokenizer_from_hf(place)
        for text in ("Hello  world\n", " x", "", P10_TEXT):
            assert one.encode(text) == other.encode(text)
        assert (one.bos_id, one.eos_id) == (other.bos_id, other.eos_id)


# 3.6 Chat templates

NOW = time.strptime("2024-07-26T14:05:09", "%Y-%m-%dT%H:%M:%S")


def render(source, **variables):
    return kshipra.ChatTemplate(source).render(variables, now=NOW)


def test_fixture_templates(shared):
    """Fourteen templates of published models, fourteen conversations each; by jinja2 3.1.6."""
    place, n_cases = shared / "fixtures" / "templates", 0
    conversations = json.loads((place / "conversations.json").read_text())["conversations"]
    conversations = {c.pop("name"): {**c, **c.pop("variables", {})} for c in conversations}
    for path in sorted(place.glob("*.jinja")):
        vectors = json.loads(path.with_suffix(".json").read_text())
        template = kshipra.ChatTemplate(path.read_text())
        for case in vectors["cases"]:
            variables = {"bos_token": vectors["bos_token"], "eos_token": vectors["eos_token"],
                         **conversations[case["conversation"]]}
            n_cases += 1
            if "expected" in case:
                assert template.render(variables, now=NOW) == case["expected"]
                continue
            with pytest.raises(KshipraError) as caught:
                template.render(variables, now=NOW)
            if case["error"] == "raise_exception":
                assert case["message"] in str(caught.value)
    assert n_cases == 196


@pytest.mark.parametrize("source, text", [
    ("a{{ 1 }}b\n", "a1b"), ("a\n\n", "a\n"), ("a\r\nb", "a\nb"), ("{{ '}}' }}", "}}"),
    ("  {% if 1 %}\n x\n  {% endif %}\ny", " x\ny"),
    ("a {%- if 1 -%} \n b {%- endif -%} c", "abc"),
    ("  {%+ if 1 +%}\nx{% endif %}", "  \nx"), ("a {{- 1 -}} b", "a1b"), (" {{ 1 }}\nx", " 1\nx"),
    ("  {# note #}\nx{#- more -#} y", "xy"), ("{% raw %}{{ a }}{%- endraw %}", "{{ a }}"),
    ("{{ {'a': {'b': 1}} }}", "{'a': {'b': 1}}"), ("{{ 'a\\n\\u00e9\\q' }}", "a\né\\q"),
    ("{{ 'a' 'b' }}", "ab"), ("{{ 1_000 + 2 * 3 ** 2 - 7 // 2 % 2 }}", "1017"),
    ("{{ -2.5|abs }}", "2.5"),
    ("{{ 1 + 2 ~ 3 * 4 }}", ""), ("{{ 'x' ~ 1 + 2 }}", ""),
    ("{{ 'a' in 'cat' and not 1 > 2 < 3 }}", "True"),
    ("{{ 'y' if false }}|{{ 'n' if false else 'm' }}", "|m"), ("{{ a }}{{ a.b is defined }}", ""),
    ("{{ x[0] }}{{ x[-1] }}{{ x[1:] }}{{ x[::-1][0] }}{{ x[7] }}", "13[2, 3]3"),
    ("{{ d.items }}", ""), ("{{ d['items'] }}{{ d.k }}{{ d.get('q', 4) }}", "5v4"),
    ("{% for k, v in d.items() if k != 'k' %}{{ k }}={{ v }}{% endfor %}", "items=5"),
    ("{% for i in x %}{{ loop.index }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }}"
     "{{ ',' if not loop.last }}{% endfor %}", "122,2113,302"),
    ("{% for i in x %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% if i == 3 %}{% break %}"
     "{% endif %}{% else %}none{% endfor %}", "13"),
    ("{% for i in [] %}{% else %}none{% endfor %}", "none"),
    ("{% set a = 1 %}{% for i in x %}{{ a }}{% set a = i %}{% endfor %}{{ a }}", "1111"),
    ("{% set n = namespace(a=0) %}{% for i in x %}{% set n.a = n.a + i %}{% endfor %}{{ n.a }}",
     "6"),
    ("{% set a %}b{{ 1 }}{% endset %}{{ a|upper }}", "B1"),
    ("{% set a, b = (1, 2) %}{{ b }}{{ a }}", "21"),
    ("{% macro m(a, b=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{% set c = 3 %}"
     "{{ m(1) }}{{ m(1, b=2) }}", "113123"), ("{% generation %}x{% endgeneration %}", "x"),
    ("{{ strftime_now('%Y-%m-%d %B') }}", "2024-07-26 July"),
    ("{{ range(3)|join('-') }}", "0-1-2"),
    ("{{ {'é': ['<b>', none, true, 1.0]}|tojson }}", '{"é": ["<b>", null, true, 1.0]}'),
    ("{{ {'a': 1}|tojson(indent=2) }}", '{\n  "a": 1\n}'),
    ("{{ 'é'|tojson(ensure_ascii=true) }}", '"\\u00e9"'),
    ("{{ 'a\\nb'|indent(2) }}|{{ 'a\\nb'|indent(2, first=true) }}", "a\n  b|  a\n  b"),
    ("{{ m|selectattr('r', 'equalto', 'u')|map(attribute='c')|join(',') }}", "1,3"),
    ("{{ m|rejectattr('r', 'eq', 'u')|list|length }}{{ x|select('odd')|list }}", "1[1, 3]"),
    ("{{ x is iterable }}{{ d is mapping }}{{ 'a' is string }}{{ none is none }}"
     "{{ 4 is divisibleby 2 }}{{ q is not defined }}{{ x is sequence }}{{ true is integer }}",
     "TrueTrueTrueTrueTrueTrueTrueFalse"),
    ("{{ q|default('z') }}{{ ''|default('z', true) }}{{ q|length }}{{ 'x' in q }}", "zz0False"),
    ("{{ ' a '|trim }}{{ 'abc'|replace('b', '')|first }}{{ '7'|int + 1 }}{{ 'q'|int }}", "aa80"),
    ("{{ ['b', 'A']|sort }}{{ [1, 1]|unique|list }}{{ x|sum }}", "['A', 'b'][1]6"),
    ("{{ ' aXb '.strip().split('X')[1].upper() }}{{ 'abc'.endswith('c') }}", "BTrue")])
def test_what_a_template_writes(source, text):
    """Each is what jinja2 3.1.6 gives, but for those marked "", which it and we refuse."""
    variables = {"x": [1, 2, 3], "d": {"k": "v", "items": 5},
                 "m": [{"r": "u", "c": 1}, {"r": "s", "c": 2}, {"r": "u", "c": 3}]}
    if text or source.startswith("{% for i in []"):
        assert render(source, **variables) == text
    else:
        with pytest.raises(KshipraError, match="chat template, line 1: "):
            render(source, **variables)


@pytest.mark.parametrize("source, message", [
    ("{{ b }}\n{{ a.b }}", "line 2: 'a' is undefined"),
    ("\n\n{{ [][0].x }}", "line 3: element 0 of a list is undefined"),
    ("{% if %}", "line 1: .*is needed|understood|'end' was found"),
    ("{% endif %}", "'endif' is not known"),
    ("{% if 1 %}", "endif is missing"), ("{{ 1", "'' is not understood"),
    ("{{ a ? b }}", "'. b ..' is not"),
    ("{{ 'a }}", "is not understood"), ("{# a", "does not end"), ("{% raw %}{{", "does not end"),
    ("{% include 'x' %}", "statement 'include' is not known"), ("{{ 1|nope }}", "filter 'nope'"),
    ("{{ 1 is nope }}", "test 'nope'"), ("{% break %}", "break outside a loop"),
    ("{% for i in [1] %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
     "break outside a loop"),
    ("{{ raise_exception('no\\x1b[31m') }}", r"refuses: 'no\\x1b"),
    ("{{ 1 / 0 }}", "division by zero"),
    ("{{ 'a' + 1 }}", r"line 1: \+ of a str and a int"), ("{{ '%s' % 1 }}", "% of a str"),
    ("{% set a = {} %}{% set a.b = 1 %}", "'a' is no namespace"),
    ("{{ 1(2) }}", "int is no function"),
    ("{{ a() }}", "'a' is undefined"), ("{{ strftime_now }}", "a function is no value"),
    ("{{ {}|tojson(indent=-1) }}", "indent of -1"), ("{{ nope|tojson }}", "JSON serializable"),
    ("{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "macro 'm' has no such argument"),
    ("{% for a, b in [[1]] %}{% endfor %}", "1 values for 2 names"),
    ("{{ " + "(" * 5000 + ")" * 5000 + "}}", "nested|read"),
    ("{{ " + "not " * 5000 + "1 }}", "nested|read")])
def test_what_is_wrong_with_a_template_is_said_with_its_line(source, message):
    with pytest.raises(KshipraError, match=message) as caught:
        render(source)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("source", [
    "{{ ''.__class__ }}", "{{ x.__class__.__mro__ }}", "{{ [].append(1) }}",
    "{{ ''['__class__']() }}",
    "{{ x|map(attribute='__class__')|list|first }}", "{{ raise_exception.__globals__ }}",
    "{{ namespace.__init__ }}", "{{ loop.__dict__ }}",
    "{% set ns = namespace() %}{{ ns.update(a=1) }}",
    "{% macro m() %}{% endmacro %}{{ m.__code__ }}", "{{ 'a'.format(1) }}", "{{ d.pop('a') }}",
    "{{ d.items().__class__ }}", "{{ ''.encode() }}", "{{ strftime_now('%Y' * 201) }}",
    "{{ strftime_now('%9999999Y') }}"])
def test_a_template_reaches_nothing_of_python(source):
    """What is no item is undefined, and shows nothing."""
    try:
        assert render(source, x=["a"], d={"a": 1}) == ""
    except KshipraError:
        pass


@pytest.mark.parametrize("source", [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}", "{{ 'a' * 10 ** 10 }}",
    "{{ 9 ** 99999 }}",
    "{% set n = namespace(a='ab') %}{% for i in range(99) %}{% set n.a = n.a + n.a %}{% endfor %}",
    "{% set n = namespace(a=9) %}{% for i in range(99) %}{% set n.a = n.a * n.a %}{% endfor %}",
    "{% set n = namespace(a=[]) %}{% for i in range(99) %}{% set n.a = [n.a, n.a] %}{% endfor %}"
    "{{ n.a }}",
    "{% set n = namespace(a=[], b=[]) %}{% for i in range(99) %}{% set n.a = [n.a, n.a] %}"
    "{% set n.b = [n.b, n.b] %}{% endfor %}{{ n.a == n.b }}", "{{ range(10 ** 9) }}",
    "{% set a = 'x' * 100000 %}{{ a.replace('', a) }}",
    "{% set a = 'x' * 100000 %}{{ a|replace('x', a) }}",
    "{% set a = ['x' * 100000] * 1000 %}{{ a|join(a[0]) }}",
    "{{ ('a\\n' * 100000)|indent(9999) }}",
    "{% set a = 'x' * 8000000 %}{% for i in range(99999) %}{% set b = a.upper() %}{% endfor %}",
    "{% set a = 'x' * 8000000 %}{% for i in range(99999) %}{% set b = a|upper %}{% endfor %}",
    "{% set a = 'x' * 8000000 %}{% for i in range(99999) %}{% set b = a == a[:] %}{% endfor %}",
    "{% set a = 'x' * 8000000 %}{% for i in range(99999) %}{{ a }}{% endfor %}",
    "{% set a = 'x' * 8000000 %}{% for i in range(99) %}{% set b = a|list %}{% endfor %}",
    "{% for a in 'x' * 8000000 %}{% endfor %}", "{% raw " * 40000, "{{ 1" + "+1" * 40000 + " }}"])
def test_a_template_ends_soon_and_stays_small(source, monkeypatch):
    """With a twentieth of the steps that a template has, but for the first, to save time."""
    if not source.startswith("{% for a in range"):
        monkeypatch.setattr(kshipra, "TEMPLATE_STEPS", kshipra.TEMPLATE_STEPS // 20)
    begun = time.process_time()
    with pytest.raises(KshipraError):
        render(source)
    assert time.process_time() - begun < 10


def chat_tokenizer(template=None, special=(), **keys):
    special = [("<s>", CONTROL), ("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL), *special]
    metadata = byte_level(special, eos_token_id=258, bos_token_id=256, **keys)
    if template is not None:
        metadata["tokenizer.chat_template"] = template
    return kshipra.tokenizer_from_gguf(metadata)


CHATML = ("{% for message in messages %}"
          "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
          "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


@given(content=st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", "<|im_", "end|>", "<",
    "|im_start|>",
                                         "<s>", "s>", "a", "\n", "é", "\ud800",
                                         "<<s>"])).map("".join))
def test_p12_no_message_spells_a_control_token(content):
    """Nor a tool's result, nor parts that spell one when they are joined."""
    tokenizer = chat_tokenizer(CHATML)
    for role in ("user", "tool"):
        ids = tokenizer.apply_chat_template([{"role": role, "content": content}])
        begin, end = [257, *map(ord, role + "\n")], [258, 10, 257, *map(ord, "assistant\n")]
        shift = {byte: tokenizer.encode(chr(byte))[0] for byte in range(128)}
        begin, end = ([shift.get(i, i) for i in part] for part in (begin, end))
        assert ids[:len(begin)] == begin and ids[-len(end):] == end
        span = ids[len(begin):len(ids) - len(end)]
        assert not tokenizer._control & {*span}
        assert tokenizer.decode(span) == content.replace("\ud800", "\ufffd")
        text = tokenizer.apply_chat_template([{"role": role, "content": content}], tokenize=False)
        assert text == (f"<|im_start|>{role}\n{content}<|im_end|>\n<|im_start|>"
                        "assistant\n").replace("\ud800", "\ufffd")
    parts = chat_tokenizer("{% for p in messages[0].content %}{{ p }}{% endfor %}")
    ids = parts.apply_chat_template([{"role": "user", "content": list(content)}])
    assert not parts._control & {*ids}


def test_p12_what_is_made_of_texts_spells_none_either():
    tokenizer = chat_tokenizer(
        "{{ messages }}|{{ messages|tojson }}|{{ tools|string }}|{{ documents|join }}"
        "|{{ messages[0].content.upper() }}|{% for k in tools[0] %}{{ k }}{% endfor %}")
    messages = [{"role": "user", "content": ["<|im_end|>", "<s>"], "<s>": 1}]
    messages[0]["content"] = "<s>"
    text = tokenizer.apply_chat_template(messages, tools=[{"<|im_end|>": "<s>"}],
                                         documents=["<|im_", "end|>"], tokenize=False)
    assert text.count("<s>") == 5 and text.count("<|im_end|>") == 3
    ids = tokenizer.apply_chat_template(messages, tools=[{"<|im_end|>": "<s>"}],
                                        documents=["<|im_", "end|>"])
    assert not tokenizer._control & {*ids}
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("writes", ["{{ bos_token }}", "<s>", "<s><s>", ""])
@pytest.mark.parametrize("add_bos", [True, False, None])
@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece"])
def test_p18_a_conversation_has_one_beginning(writes, add_bos, kind):
    """Where template or tokenizer asks for one; a text alone as the tokenizer asks."""
    template = writes + "{{ messages[0].content }}"
    if kind == "byte-level":
        tokenizer = chat_tokenizer(template, add_bos_token=add_bos)
    else:
        metadata = {**sentencepiece(WORDS, add_bos_token=add_bos),
            "tokenizer.chat_template": template}
        tokenizer = kshipra.tokenizer_from_gguf(metadata)
    wanted = bool(writes) or tokenizer.add_bos
    for content in ("a", "<s>a"):
        ids = tokenizer.apply_chat_template([{"role": "user", "content": content}])
        assert ids.count(tokenizer.bos_id) == wanted == (ids[:1] == [tokenizer.bos_id])
        assert tokenizer.encode_prompt(content)[:1].count(tokenizer.bos_id) == (
            tokenizer.add_bos or content == "<s>a")


def test_p19_an_argument_that_the_template_never_reads_is_reported():
    tokenizer = chat_tokenizer(CHATML + "{% if enable_thinking is defined %}!{% endif %}")
    messages = [{"role": "user", "content": "a"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, enable_thinking=False)
    assert text.endswith("!")
    for more in ({"enable_thinkin": True}, {"tools": [{}]}, {"documents": "x",
        "enable_thinking": 1}):
        with pytest.raises(KshipraError, match="chat template never reads this"):
            tokenizer.apply_chat_template(messages, **more)
    assert tokenizer.apply_chat_template(messages, tools=None, tokenize=False) == text[:-1]


def test_p19_the_end_of_a_turn_stops_a_generation():
    assert chat_tokenizer(CHATML).stop_ids == {258}


@pytest.mark.parametrize("messages, message", [
    ("hi", "messages: a list"), ([5], r"messages\[0\]: an object with a role"),
    ([{}], "with a role"),
    ([{"role": "user", "content": "a"}, {"role": "a|>\n<|b"}], r"messages\[1\]"),
    ([{"role": 5}], "with a role"), ([{"role": ""}], "with a role"),
    ([{"role": "user", "content": {1: 2}}], "messages: dict is no type of JSON"),
    ([{"role": "user", "content": b"a"}], "messages: bytes is no type")])
def test_messages_that_are_none_are_refused(messages, message):
    with pytest.raises(KshipraError, match=message):
        chat_tokenizer(CHATML).apply_chat_template(messages)


def test_a_model_without_a_template_says_so():
    assert chat_tokenizer().chat_template is None
    with pytest.raises(KshipraError, match="no chat template"):
        chat_tokenizer().apply_chat_template([])
    with pytest.raises(KshipraError, match="chat template: 5 is no text"):
        chat_tokenizer(5).apply_chat_template([])
    with pytest.raises(KshipraError, match="is no text"):
        chat_tokenizer(["a", "b"]).apply_chat_template([])


def test_where_templates_stand(tmp_path):
    tokenizer = chat_tokenizer("a{{ messages }}", **{})
    assert tokenizer.chat_template == "a{{ messages }}"
    metadata = {**byte_level([("<s>", CONTROL)]), "tokenizer.chat_template": "d{{ messages }}",
                "tokenizer.chat_template.tool_use": "t{{ messages }}{{ tools }}"}
    tokenizer = kshipra.tokenizer_from_gguf(metadata)
    assert tokenizer.apply_chat_template([], tokenize=False) == "d[]"
    assert tokenizer.apply_chat_template([], tools=[1], tokenize=False) == "t[][1]"
    for settings_, files, text in (
            ({"chat_template": "one"}, {}, "one"), ({"chat_template": [
                {"name": "default", "template": "two"}]}, {}, "two"), ({}, {"chat_template": {
                    "chat_template": "three"}}, "three"), ({"chat_template": "one"}, {}, "four")):
        place = hf_directory(tmp_path, tokenizer_json(), tokenizer_config=settings_, **files)
        if text == "four":
            (tmp_path / "chat_template.jinja").write_text("four\n")
        assert kshipra.load_tokenizer(place).chat_template == text + "\n" * (text == "four")
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "chat_template.json").unlink()
    hf_directory(tmp_path, tokenizer_config={"chat_template": [5]})
    with pytest.raises(KshipraError, match="wrong type"):
        kshipra.load_tokenizer(tmp_path)
