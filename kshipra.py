#!/usr/bin/env python3
"""kshipra: a complete LLM inference engine in one file that needs nothing but Python.

Run it:

    python kshipra.py --prompt "Once upon a time"
    python kshipra.py --model model.gguf --prompt "The capital of France is"

Call it:

    import kshipra
    model = kshipra.load("model.gguf")
    print("".join(model.generate("The capital of France is", max_tokens=16)))

Read it, top to bottom:

    1. Numbers
    2. Files
    3. Text
    4. Reference
    5. Machine code
    6. Cache
    7. Model
    8. Sampling
    9. Decoding
    12. Front doors
    13. The model in the file

Glossary.  n_layers, n_heads, n_kv_heads, n_vocab, n_ctx: counts.  head_dim, hidden, ffn:
the width of a head, of the residual stream, of the inside of the feed-forward network.
R: the rows of a batch; a row is one (token, position, sequence) and its line in every
activation.  S: the positions that a row can see.  token: an id; piece: its bytes; text: a
str.  Weight matrices are (n_out, n_in).  block: a run of quantized weights; page: the unit
of the cache.  `_bytes`, `_bits`, `_s`: units; `_off`: bytes from the start of a file.

MIT License; see the file LICENSE.
"""
import codecs
import functools
import heapq
import json
import os
import re
import struct
import sys
import unicodedata


class KshipraError(ValueError):
    """Something a user can meet: what is wrong, where, and what to do.

    path: the file concerned; offset: the byte in it; both are kept as attributes.
    """

    def __init__(self, message, path=None, offset=None):
        where = f"{path}, byte {offset:#x}: " if offset is not None else f"{path}: " if path else ""
        super().__init__(where + message)
        self.path, self.offset = path, offset


# ---------------------------------------------------------------------------------------
# 1. Numbers


# ---------------------------------------------------------------------------------------
# 2. Files


# ---------------------------------------------------------------------------------------
# 3. Text
#
# A model reads and writes token ids.  A tokenizer turns text into ids and back: it cuts the
# text into words, writes each word as a row of characters, and joins neighbours, best pair
# first, until no pair is left that the vocabulary knows (byte-pair encoding).
#
#   text -> special tokens cut out -> words -> characters -> merges -> ids
#
# Two families share the merge loop.  Byte-level BPE cuts words by a rule per model family
# and merges bytes in the order of a list.  SentencePiece merges characters by the score of
# the result, and falls back to bytes for what it does not know.  A vocabulary comes from
# GGUF metadata or from the files of a Hugging Face directory.
#
# Not here: WordPiece and Unigram vocabularies.  After Sennrich et al. (2016), "Neural machine
# translation of rare words with subword units", algorithm 1; the rules per family are those
# of llama.cpp, src/llama-vocab.cpp, and of each model's tokenizer.json.

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)     # GGUF, token_type

WORD_CACHE_ENTRIES = 1 << 16    # words whose ids are remembered,
WORD_CACHE_CHARS = 64           # if they are no longer than this


def bpe_merge(parts, rank):
    """Join neighbours in parts, lowest rank first and leftmost of equals, while any has a rank.

    parts: list of str   rank(left, right): a number, or None where the pair does not merge
    The parts are a linked list (before, after) and a heap holds every pair that ever had a
    rank; an entry whose rank is no longer that of its place is out of date and is skipped.
    So n characters cost n log n, also when they are all equal.

    >>> bpe_merge(list("abab"), {("a", "b"): 0, ("ab", "ab"): 1}.get) -> ["abab"]
    """
    n = len(parts)
    before, after = list(range(-1, n - 1)), list(range(1, n + 1))
    ranks = [rank(left, right) for left, right in zip(parts, parts[1:])] + [None]
    heap = [(r, i) for i, r in enumerate(ranks) if r is not None]
    heapq.heapify(heap)
    while heap:
        r, i = heapq.heappop(heap)
        if ranks[i] != r:
            continue
        gone = after[i]
        parts[i] += parts[gone]
        parts[gone] = ranks[gone] = None
        after[i] = after[gone]
        if after[i] < n:
            before[after[i]] = i
        for left in (before[i], i):
            if left < 0:
                continue
            right = after[left]
            ranks[left] = rank(parts[left], parts[right]) if right < n else None
            if ranks[left] is not None:
                heapq.heappush(heap, (ranks[left], left))
    return [part for part in parts if part is not None]


class Vocabulary:
    """The text and the type of every token id, and the ways to look a text up.

    texts: sequence of str or UTF-8 bytes   types: sequence of int
    Nothing is decoded or indexed before it is asked for: a vocabulary may hold 262144 tokens.
    """

    def __init__(self, texts, types):
        self.texts, self.types = texts, types

    def __len__(self):
        return len(self.texts)

    def text(self, token):
        text = self.texts[token]
        return text if isinstance(text, str) else bytes(text).decode("utf-8", "surrogateescape")

    @functools.cached_property
    def special(self):
        """{text: token} of the tokens that are matched as they stand, before any word is cut."""
        kinds = (UNKNOWN, CONTROL, USER_DEFINED)
        found = {self.text(i): i for i, kind in enumerate(self.types) if kind in kinds}
        found.pop("", None)
        return found

    @functools.cached_property
    def ids(self):
        """{text: token} of the tokens that merging may yield: never a control or byte token.

        Of two tokens with one text the lower id counts.
        """
        found = {self.text(i): i for i in range(len(self) - 1, -1, -1)}
        for i, kind in enumerate(self.types):
            if kind not in (NORMAL, USER_DEFINED) and found.get(self.text(i)) == i:
                del found[self.text(i)]
        return found

    @functools.cached_property
    def byte_ids(self):
        """{byte: token} of the tokens of type BYTE."""
        return {self.text(i): i for i, kind in enumerate(self.types) if kind == BYTE}


# Where to cut words.  Every family has its regular expressions, applied one after another,
# each to what the one before has cut.  They speak of Unicode classes, which `re` does not
# know.  So a character that is not ASCII is first replaced by a stand-in for its class; then
# \p{L} is a short set, and \s in ASCII mode is right too.

STAND_INS = {"Lu": "À", "Ll": "à", "Lt": "ǅ", "Lm": "ʰ", "Lo": "ª", "M": "\u0300", "N": "²",
             "P": "¡", "S": "©", "Z": "\v", "C": "\x80"}
CLASSES = {"Lu": "A-ZÀ", "Ll": "a-zà", "Lt": "ǅ", "Lm": "ʰ", "Lo": "ª", "L": "A-Za-zÀàǅʰª",
           "M": "\u0300", "N": "0-9²", "P": r"!-#%-*,-/:;?@\[-\]_{}¡", "S": "$+<=>^`|~©"}


class ClassTable(dict):
    """A table for str.translate that fills itself: code point -> stand-in of its class."""

    def __missing__(self, code):
        category = unicodedata.category(chr(code))
        stand_in = STAND_INS.get(category) or STAND_INS[category[0]]
        if code < 128:
            stand_in = chr(code)
        elif code == 0x85:                      # next line: a control, but white space
            stand_in = STAND_INS["Z"]
        if len(self) < 1 << 16:
            self[code] = stand_in
        return stand_in


CLASS_TABLE = ClassTable()

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = GPT4O.replace(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", "")
PUNCTUATION = r"[\p{P}$+<=>^`|~]+"
DIGIT, DIGITS, THREE_DIGITS = r"\p{N}", r"\p{N}+", "[0-9][0-9][0-9]"
KNOWN_PATTERNS = {GPT2, LLAMA3, QWEN2, GPT4O, TEKKEN, DIGIT, DIGITS, THREE_DIGITS, r"\p{N}{1,3}"}

# tokenizer.ggml.pre -> the expressions.
PRE_TOKENIZERS = {
    "default":        (r"[\p{P}$+<=>^|~]+", GPT2, DIGITS, THREE_DIGITS),
    "gpt-2":          (GPT2,),
    "phi-2":          (GPT2,),
    "mpt":            (GPT2,),
    "olmo":           (GPT2,),
    "falcon":         (PUNCTUATION, GPT2, THREE_DIGITS),
    "smollm":         (DIGIT, GPT2),
    "starcoder":      (DIGIT, GPT2),
    "refact":         (DIGIT, GPT2),
    "command-r":      (DIGIT, GPT2),
    "codeshell":      (DIGIT, GPT2),
    "llama-bpe":      (LLAMA3,),
    "llama3":         (LLAMA3,),
    "llama-v3":       (LLAMA3,),
    "falcon3":        (LLAMA3,),
    "dbrx":           (LLAMA3,),
    "smaug-bpe":      (LLAMA3,),
    "qwen2":          (QWEN2,),
    "deepseek-r1-qwen": (QWEN2,),
    "stablelm2":      (QWEN2,),
    "gpt-4o":         (GPT4O,),
    "llama4":         (GPT4O,),
    "tekken":         (TEKKEN,),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", DIGIT),
}
# A word that is a token as a whole is taken whole, and BOS is added unless the file objects.
WHOLE_WORDS = {"llama-bpe", "llama3", "llama-v3", "falcon3", "tekken"}


@functools.lru_cache(maxsize=None)
def compile_pattern(pattern):
    """Compile an expression with \\p{..} to one over stand-ins -> (compiled, over stand-ins).

    An expression without classes is matched against the text itself.
    """
    def expand(match):
        found = match.group()
        inside = re.sub(r"\\p\{(\w+)\}", lambda name: CLASSES[name.group(1)], found)
        return inside if found[0] == "[" else f"[{inside}]"

    expanded = re.sub(r"\[(?:\\.|[^\]\\])*\]|\\p\{\w+\}", expand, pattern)
    return re.compile(expanded, re.ASCII), "\\p" in pattern


def cut_words(text, patterns):
    """Return text cut at the matches of each pattern in turn, and between them; loses nothing."""
    stand_ins = text if text.isascii() else text.translate(CLASS_TABLE)
    spans = [(0, len(text))]
    for pattern in patterns:
        compiled, over_stand_ins = compile_pattern(pattern)
        subject = stand_ins if over_stand_ins else text
        cut = []
        for start, end in spans:
            for match in compiled.finditer(subject, start, end):
                if match.start() > start:
                    cut.append((start, match.start()))
                cut.append(match.span())
                start = match.end()
            if start < end:
                cut.append((start, end))
        spans = cut
    return [text[start:end] for start, end in spans]


# Byte-level vocabularies write a byte as a printable character: printable Latin-1 as itself,
# the other 68 bytes as U+0100 and on.  Source: GPT-2, encoder.py, bytes_to_unicode.

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_TO_CHAR = {**{byte: chr(byte) for byte in _PRINTABLE},
                **{byte: chr(256 + i) for i, byte in enumerate(_OTHERS)}}
CHAR_TO_BYTE = {char: byte for byte, char in BYTE_TO_CHAR.items()}


class ByteLevel:
    """Byte-level BPE: words of bytes, merged in the order of a list.

    merges: sequence of str or bytes, "left right", most urgent first
    patterns: where to cut words   whole_words: take a word that is a token without merging
    """

    space_prefix = "never"

    def __init__(self, vocabulary, merges, patterns, whole_words=False, normal_form=None):
        self.vocabulary, self.merges, self.patterns = vocabulary, merges, patterns
        self.whole_words, self.normal_form = whole_words, normal_form

    @functools.cached_property
    def ranks(self):
        """{"left right": rank}"""
        if len(self.merges) and not isinstance(self.merges[0], str):
            return {bytes(m).decode("utf-8", "surrogateescape"): i
                    for i, m in enumerate(self.merges)}
        return {m: i for i, m in enumerate(self.merges)}

    def rank(self, left, right):
        found = self.ranks.get(f"{left} {right}")
        return found if found is not None and left + right in self.vocabulary.ids else None

    def words(self, text, first):
        if self.normal_form:
            text = unicodedata.normalize(self.normal_form, text)
        for word in cut_words(text, self.patterns):
            yield word.encode("utf-8").decode("latin-1").translate(BYTE_TO_CHAR)

    def word_ids(self, word):
        ids = self.vocabulary.ids
        if self.whole_words and word in ids:
            return [ids[word]]
        # A byte without a token is left out, as everywhere: Falcon has none for control bytes.
        return [ids[part] for part in bpe_merge(list(word), self.rank) if part in ids]

    def piece(self, text):
        """Return the bytes that a normal token's text stands for."""
        return b"".join(bytes((CHAR_TO_BYTE[c],)) if c in CHAR_TO_BYTE
                        else c.encode("utf-8", "surrogateescape") for c in text)


SPACE = "\u2581"        # SentencePiece writes a space as a lower block


class SentencePiece:
    """SentencePiece BPE: characters, merged by the score of the result, with byte fallback.

    rank(left, right): as in bpe_merge
    space_prefix: "always" puts a space before the text and again after each special token,
    "first" only before the text, "never"; a text that begins with one gets none if `once`.
    """

    def __init__(self, vocabulary, rank, space_prefix="always", once=False, normal_form=None):
        self.vocabulary, self.rank = vocabulary, rank
        self.space_prefix, self.once, self.normal_form = space_prefix, once, normal_form
        self.unknown_id = next((i for i, t in enumerate(vocabulary.types) if t == UNKNOWN), None)

    @functools.cached_property
    def cuts(self):
        """Where merging cannot reach across: before a space, after a character that no token
        has before a space.  So words can be merged, and remembered, one by one."""
        tokens = "\n".join(self.vocabulary.ids)
        inside = set(re.findall(f"(.){SPACE}", tokens, re.DOTALL)) - {"\n"}
        inside |= {"\n"} if any(f"\n{SPACE}" in text for text in self.vocabulary.ids) else set()
        return re.compile(f"(?<![{re.escape(''.join(sorted(inside)))}])(?={SPACE})"
                          if inside else f"(?={SPACE})")

    def words(self, text, first):
        if self.normal_form:
            text = unicodedata.normalize(self.normal_form, text)
        text = text.replace(" ", SPACE)
        wanted = self.space_prefix == "always" or (self.space_prefix == "first" and first)
        if wanted and not (self.once and text.startswith(SPACE)):
            text = SPACE + text
        return filter(None, self.cuts.split(text))

    def word_ids(self, word):
        ids, byte_ids = self.vocabulary.ids, self.vocabulary.byte_ids
        out = []
        for part in bpe_merge(list(word), self.rank):
            if part in ids:
                out.append(ids[part])
                continue
            for byte in part.encode("utf-8"):
                token = byte_ids.get(f"<0x{byte:02X}>", self.unknown_id)
                if token is None:
                    raise KshipraError(f"tokenizer: no token for {part!r}, none for byte "
                                       f"{byte:#04x} and no unknown token")
                out.append(token)
        return out

    def piece(self, text):
        """Return the bytes that a normal token's text stands for."""
        return text.replace(SPACE, " ").encode("utf-8", "surrogateescape")


# Tokens that end a turn or a text, whatever the metadata calls them.  Source: llama.cpp,
# src/llama-vocab.cpp, special_eog_ids.
STOP_TEXTS = {
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>",
    "<|calls|>", "<end_of_turn>", "<turn|>", "<|endoftext|>", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "</s>", "<EOT>", "_<EOT>", "<|EOT|>", "[EOT]", "[EOS]",
    "<｜end▁of▁sentence｜>"}
# Of these and the turn openers, files may say "user defined"; here they are control tokens,
# so that no one can type them.
TURN_TEXTS = STOP_TEXTS | {"<start_of_turn>", "<|im_start|>", "<|turn>"}


class Tokenizer:
    """Text to token ids and back.

    n_vocab: number of tokens   bos_id, eos_id: int or None   stop_ids: set of all ids that
    end a generation   add_bos, add_eos: whether encode adds them
    """

    def __init__(self, model, bos_id=None, eos_id=None, stop_ids=(), add_bos=False,
                 add_eos=False, strips=None):
        self.model, self.vocabulary = model, model.vocabulary
        self.n_vocab = len(model.vocabulary)
        self.bos_id, self.eos_id = bos_id, eos_id
        self.add_bos, self.add_eos = add_bos and bos_id is not None, add_eos and eos_id is not None
        self._strips = strips or {}
        self._cache = {}
        types, special = self.vocabulary.types, self.vocabulary.special
        self._control = {i for i, kind in enumerate(types) if kind in (CONTROL, UNKNOWN)}
        self._control.update(special[text] for text in TURN_TEXTS & special.keys())
        stops = {special[text] for text in STOP_TEXTS & special.keys()}
        if {"<|return|>", "<|call|>", "<|end|>"} <= special.keys() or "<|channel|>" in special:
            stops.discard(special.get("<|end|>"))       # gpt-oss: ends a message, not the turn
        self.stop_ids = stops | {i for i in {eos_id, *stop_ids} if i is not None}
        self._control |= self.stop_ids & set(special.values())

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list:
        """Return the ids of text.

        add_special: add BOS and EOS where the model was trained with them.
        parse_special: read "<|im_end|>" in the text as that token; without it no text, whatever
        it spells, gives a control token.  Tokens of type user-defined are matched either way.
        """
        text = re.sub("[\ud800-\udfff]", "\ufffd", text)        # UTF-8 has no surrogates
        out = [self.bos_id] if add_special and self.add_bos else []
        first = True
        for part in self._cut_special(text, parse_special):
            if isinstance(part, int):
                out.append(part)
            elif part:
                self._encode_plain(part, first, out)
            first = False
        if add_special and self.add_eos:
            out.append(self.eos_id)
        return out

    def _encode_plain(self, text, first, out):
        cache = self._cache
        for word in self.model.words(text, first):
            ids = cache.get(word)
            if ids is None:
                ids = self.model.word_ids(word)
                if len(word) <= WORD_CACHE_CHARS:
                    if len(cache) >= WORD_CACHE_ENTRIES:
                        cache.clear()
                    cache[word] = ids
            out.extend(ids)

    @functools.cached_property
    def _openers(self):
        """For each way of parse_special: (expression that finds a special token's first
        character, {first character: lengths of the tokens, longest first}, {text: token})."""
        out = []
        for parse in (False, True):
            ids = {text: i for text, i in self.vocabulary.special.items()
                   if parse or i not in self._control}
            lengths = {}
            for text in ids:
                lengths.setdefault(text[0], set()).add(len(text))
            lengths = {c: sorted(found, reverse=True) for c, found in lengths.items()}
            first = re.compile("[" + re.escape("".join(lengths)) + "]") if ids else None
            out.append((first, lengths, ids))
        return out

    def _cut_special(self, text, parse_special):
        """Yield text as str parts and special tokens, the leftmost and longest first."""
        first, lengths, ids = self._openers[bool(parse_special)]
        start = pos = 0
        while first:
            match = first.search(text, pos)
            if not match:
                break
            at = match.start()
            for length in lengths[text[at]]:
                token = ids.get(text[at:at + length])
                if token is not None:
                    left, right = self._strips.get(token, (False, False))
                    before = text[start:at]
                    yield before.rstrip() if left else before
                    yield token
                    start = pos = at + length
                    if right:
                        start = pos = len(text) - len(text[pos:].lstrip())
                    break
            else:
                pos = at + 1
        yield text[start:]

    def piece(self, token: int) -> bytes:
        """Return the bytes of one token, a special one's name included; b"" beyond the end."""
        if not 0 <= token < self.n_vocab:
            return b""
        text, kind = self.vocabulary.text(token), self.vocabulary.types[token]
        if kind == UNUSED:
            return b""
        if kind == BYTE:
            return bytes((int(text[3:5], 16),))
        if kind == NORMAL:
            return self.model.piece(text)
        return text.encode("utf-8", "surrogateescape")

    def decode(self, ids, special: bool = False) -> str:
        """Return the text of ids, a whole text: the space that encode put first is taken off.

        special: show control tokens too.  Any id has a text, if only an empty one; bytes that
        are not UTF-8 become U+FFFD.
        """
        stream = TextStream(self, special, at_start=True)
        return "".join([stream.push(token) for token in ids]) + stream.flush()

    def stream(self, special: bool = False):
        """Return a TextStream, which turns ids into text one by one, as a continuation."""
        return TextStream(self, special)


class TextStream:
    """Ids to text, one by one, holding bytes back until they are whole characters.

    As the ids continue a text, a leading space is kept, except after BOS.
    """

    def __init__(self, tokenizer, special=False, at_start=False):
        self._tokenizer, self._special, self._at_start = tokenizer, special, at_start
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Return the text that is certain once token has come; often its piece, maybe ""."""
        tokenizer = self._tokenizer
        if token == tokenizer.bos_id:
            self._at_start = True
        if token in tokenizer._control and not self._special:
            return ""
        piece = tokenizer.piece(token)
        if self._at_start and piece:
            self._at_start = False
            if tokenizer.model.space_prefix != "never" and piece.startswith(b" "):
                piece = piece[1:]
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """Return what is left at the end: one U+FFFD for the bytes of half a character."""
        return self._decoder.decode(b"", True)


# From files.  Every value below is untrusted: it is checked here, before it is an index.

def _token_id(value, n_vocab, name, path):
    """Return value if it is None or a token id; bool is not."""
    if value is not None and (type(value) is not int or not 0 <= value < n_vocab):
        raise KshipraError(f"{name}: {value!r} is no token id of a vocabulary of {n_vocab} tokens; "
                           "the file is damaged or was converted wrongly", path)
    return value


def tokenizer_from_gguf(metadata, path=None):
    """Return the Tokenizer that GGUF metadata describe.

    metadata: {key: value}; texts are str or bytes   path: named in errors
    Source: GGUF specification, "Tokenizer"; llama.cpp, src/llama-vocab.cpp.
    """
    def get(key, default=None):
        return metadata.get("tokenizer.ggml." + key, default)

    def refuse(key, message):
        raise KshipraError(f"tokenizer.ggml.{key}: {message}", path)

    def texts(key):
        found = get(key)
        if found is None or isinstance(found, (str, bytes)) or not hasattr(found, "__len__"):
            refuse(key, f"a list of texts is needed but {type(found).__name__} was found")
        if len(found) and not isinstance(found[0], (str, bytes)):
            refuse(key, f"texts are needed but {found[0]!r} was found")
        return found

    kind = get("model")
    if kind not in ("gpt2", "llama"):
        refuse("model", f"{kind!r} is not supported; 'gpt2' (byte-level BPE) and 'llama' "
                        "(SentencePiece BPE) are")
    tokens = texts("tokens")
    n_vocab = len(tokens)
    types = get("token_type")
    types = [NORMAL] * n_vocab if types is None else types
    if len(types) != n_vocab:
        refuse("token_type", f"length {len(types)}, but there are {n_vocab} tokens")
    if not set(types) <= set(range(7)):
        refuse("token_type", f"type {max(types)} is unknown; types are 0 to 6")
    vocabulary = Vocabulary(tokens, types)

    ids = {name: _token_id(get(name + "_token_id"), n_vocab, f"tokenizer.ggml.{name}_token_id", path)
           for name in ("bos", "eos", "eot", "eom")}
    if kind == "gpt2":
        pre = get("pre")
        if pre not in PRE_TOKENIZERS:
            refuse("pre", f"the rule {pre!r} for cutting words is unknown, and another one would "
                          "give wrong tokens; convert the model again with a current converter"
                          if pre is not None else
                          "missing, so the rule for cutting words is unknown; convert the model "
                          "again with a current converter")
        model = ByteLevel(vocabulary, texts("merges"), PRE_TOKENIZERS[pre], pre in WHOLE_WORDS)
        add_bos = pre in WHOLE_WORDS
    else:
        scores = get("scores")
        if scores is None or len(scores) != n_vocab:
            refuse("scores", f"length {len(scores or ())}, but there are {n_vocab} tokens")
        model = SentencePiece(vocabulary, _rank_by_scores(vocabulary, scores),
                              "always" if get("add_space_prefix", True) else "never")
        add_bos = True
    name = str(metadata.get("general.name", "")).lower()
    return Tokenizer(
        model, ids["bos"], ids["eos"], [ids["eot"], ids["eom"]],
        get("add_bos_token", add_bos), get("add_eos_token", False),
        _phi3_strips(vocabulary) if "phi-3" in name or "phi3" in name else None)


def _rank_by_scores(vocabulary, scores):
    """Return rank(left, right) for SentencePiece: the highest score of the joined text first."""
    def rank(left, right):
        token = vocabulary.ids.get(left + right)
        return None if token is None else -scores[token]
    return rank


def _phi3_strips(vocabulary):
    """Return {token: (left, right)}: Phi-3's special tokens swallow the space after them.

    GGUF has no place for this property, so llama.cpp knows it by the model's name.
    """
    plain = ("<unk>", "<s>", "<|endoftext|>")
    return {i: (False, True) for text, i in vocabulary.special.items() if text not in plain}


def _read_json(path):
    """Return the object in a JSON file, {} where there is no such file."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise KshipraError(f"not valid JSON: {error}; fetch the file again", path) from None
    if not isinstance(found, dict):
        raise KshipraError(f"a JSON object is needed but {type(found).__name__} was found", path)
    return found


def tokenizer_from_hf(directory):
    """Return the Tokenizer of a Hugging Face directory.

    From tokenizer.json, else vocab.json and merges.txt, else tokenizer.model; which ids begin
    and end a text stands in tokenizer_config.json, config.json and generation_config.json.
    """
    def at(name):
        return os.path.join(directory, name)

    settings = _read_json(at("tokenizer_config.json"))
    config, generation = _read_json(at("config.json")), _read_json(at("generation_config.json"))
    strips, add_bos = {}, None
    if os.path.exists(at("tokenizer.json")):
        path = at("tokenizer.json")
        model, strips, add_bos = _model_from_tokenizer_json(_read_json(path), path)
    elif os.path.exists(at("vocab.json")) and os.path.exists(at("merges.txt")):
        path = at("vocab.json")
        model = _model_from_vocab_json(directory, settings, config)
    elif os.path.exists(at("tokenizer.model")):
        path = at("tokenizer.model")
        with open(path, "rb") as file:
            model = _model_from_sentencepiece(file.read(), path)
        add_bos = True
    else:
        raise KshipraError("no tokenizer: tokenizer.json, vocab.json with merges.txt, or "
                           "tokenizer.model is needed", directory)

    vocabulary = model.vocabulary
    def named(key):
        text = settings.get(key)
        text = text.get("content") if isinstance(text, dict) else text
        return vocabulary.special.get(text, vocabulary.ids.get(text)) if text else None

    places = (generation, config, config.get("text_config") or {})
    def listed(key):
        for place in places:
            value = place.get(key)
            for token in value if isinstance(value, list) else [value]:
                # An id beyond the tokenizer is one that the padded model may have.
                if type(token) is int and 0 <= token < len(vocabulary):
                    yield token

    eos_ids = [i for i in (named("eos_token"), *listed("eos_token_id")) if i is not None]
    bos_ids = [i for i in (named("bos_token"), *listed("bos_token_id")) if i is not None]
    wants_bos = settings.get("add_bos_token")
    return Tokenizer(model, bos_ids[0] if bos_ids else None, eos_ids[0] if eos_ids else None,
                     eos_ids, add_bos if wants_bos is None else wants_bos,
                     settings.get("add_eos_token") or False, strips)


def _vocabulary_from_dict(ids, added, byte_fallback, path):
    """Return the Vocabulary of {text: id} and the list of added tokens of a tokenizer.json."""
    for text, token in [*ids.items(), *((a.get("content"), a.get("id")) for a in added)]:
        if type(token) is not int or not isinstance(text, str) or token < 0:
            raise KshipraError(f"vocabulary: token {text!r} has id {token!r}; "
                               "ids are numbers from 0", path)
    n_vocab = 1 + max([-1, *ids.values(), *(a["id"] for a in added)])
    if n_vocab > 2 * (len(ids) + len(added)):
        raise KshipraError(f"vocabulary: the highest id is {n_vocab - 1}, but there are only "
                           f"{len(ids) + len(added)} tokens", path)
    texts, types = [""] * n_vocab, bytearray([UNUSED]) * n_vocab
    for text, token in ids.items():
        is_byte = byte_fallback and re.fullmatch("<0x[0-9A-F]{2}>", text)
        texts[token], types[token] = text, BYTE if is_byte else NORMAL
    for a in added:
        text, token = a["content"], a["id"]
        if a.get("special"):
            texts[token], types[token] = text, CONTROL
        else:
            texts[token] = text.replace(SPACE, " ") if byte_fallback else text
            types[token] = USER_DEFINED
    return Vocabulary(texts, types)


def _steps(node, key):
    """Return the steps of a tokenizer.json component: none, one, or a Sequence's."""
    if node is None:
        return []
    return node[key] if node["type"] == "Sequence" else [node]


def _model_from_tokenizer_json(root, path):
    """Return (model, {token: (strips left, strips right)}, whether BOS is added or None).

    Whatever in the file would change the ids and is not known here is refused.
    """
    def refuse(part, found):
        raise KshipraError(f"{part}: {json.dumps(found, ensure_ascii=False)[:200]} is not "
                           "supported; convert the model to GGUF, or use another tokenizer", path)

    try:
        bpe, added = root["model"], root.get("added_tokens") or []
        kind = bpe.get("type", "BPE" if "merges" in bpe else None)
        if kind != "BPE":
            refuse("model.type", kind)
        for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
            if bpe.get(key):
                refuse("model." + key, bpe[key])
        for a in added:
            if a.get("single_word"):
                refuse("added_tokens", a)
        byte_fallback = bool(bpe.get("byte_fallback"))
        vocabulary = _vocabulary_from_dict(bpe["vocab"], added, byte_fallback, path)
        merges = [m if isinstance(m, str) else " ".join(m) for m in bpe["merges"]]

        normal_form, prefix, once, to_space = None, "never", False, False
        for step in _steps(root.get("normalizer"), "normalizers"):
            if step["type"] in ("NFC", "NFD", "NFKC", "NFKD"):
                normal_form = step["type"]
            elif step["type"] == "Prepend" and step["prepend"] == SPACE:
                prefix = "always"
            elif step["type"] == "Replace" and step["pattern"] == {"String": " "} \
                    and step["content"] == SPACE:
                to_space = True
            else:
                refuse("normalizer", step)

        patterns = []
        for step in _steps(root.get("pre_tokenizer"), "pretokenizers"):
            if step["type"] == "ByteLevel" and not step.get("add_prefix_space"):
                patterns += [GPT2] if step.get("use_regex", True) else []
            elif step["type"] == "Digits":
                patterns.append(DIGIT if step.get("individual_digits") else DIGITS)
            elif step["type"] == "Punctuation" and step.get("behavior") == "Contiguous":
                patterns.append(PUNCTUATION)
            elif step["type"] == "Metaspace" and step["replacement"] == SPACE \
                    and not step.get("split", True):
                scheme = step.get("prepend_scheme", "always")
                prefix, once, to_space = scheme, True, True
            elif step["type"] == "Split" and step["pattern"].get("Regex") in KNOWN_PATTERNS \
                    and (step["behavior"], step.get("invert", False)) in (
                        ("Isolated", False), ("Removed", True)):
                patterns.append(step["pattern"]["Regex"])
            elif step["type"] == "Split" and step["pattern"] == {"String": " "} and to_space:
                pass                        # no space is left to split at
            else:
                refuse("pre_tokenizer", step)

        if to_space and not patterns:
            ranks = {m: i for i, m in enumerate(merges)}
            model = SentencePiece(vocabulary, _rank_by_merges(vocabulary, ranks), prefix, once,
                                  normal_form)
        elif patterns and not to_space:
            model = ByteLevel(vocabulary, merges, patterns, bool(bpe.get("ignore_merges")),
                              normal_form)
        else:
            refuse("pre_tokenizer", root.get("pre_tokenizer"))

        add_bos = None
        for step in _steps(root.get("post_processor"), "processors"):
            if step["type"] == "TemplateProcessing":
                add_bos = "SpecialToken" in step["single"][0]
            elif step["type"] != "ByteLevel":
                refuse("post_processor", step)
        strips = {a["id"]: (bool(a.get("lstrip")), bool(a.get("rstrip"))) for a in added
                  if a.get("lstrip") or a.get("rstrip")}
        return model, strips, add_bos
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise KshipraError(f"tokenizer: a part is missing or of the wrong type "
                           f"({type(error).__name__}: {error})", path) from None


def _rank_by_merges(vocabulary, ranks):
    """Return rank(left, right) for a SentencePiece vocabulary that comes with merges."""
    def rank(left, right):
        found = ranks.get(f"{left} {right}")
        return found if found is not None and left + right in vocabulary.ids else None
    return rank


def _model_from_vocab_json(directory, settings, config):
    """Return the model of vocab.json and merges.txt, the files of GPT-2's first release."""
    path = os.path.join(directory, "vocab.json")
    family = str(settings.get("tokenizer_class", config.get("model_type", "")))
    patterns = {"gpt2": (GPT2,), "qwen2": (QWEN2,)}.get(
        family.lower().replace("tokenizer", "").replace("fast", ""))
    if patterns is None:
        raise KshipraError(f"tokenizer_class: {family!r} does not say how to cut words; "
                           "a tokenizer.json is needed", path)
    ids = _read_json(path)
    decoder = settings.get("added_tokens_decoder") or {}
    added = [{**a, "id": int(i)} for i, a in decoder.items()]
    if not added and "<|endoftext|>" in ids:
        added = [{"content": "<|endoftext|>", "id": ids["<|endoftext|>"], "special": True}]
    with open(os.path.join(directory, "merges.txt"), encoding="utf-8") as file:
        lines = file.read().split("\n")
    merges = [line for line in lines if line and not line.startswith("#version")]
    return ByteLevel(_vocabulary_from_dict(ids, added, False, path), merges, patterns,
                     normal_form="NFC" if patterns == (QWEN2,) else None)


def _protobuf_fields(data, path):
    """Yield (field number, value) of a protocol buffer: int, or bytes for any longer value.

    Source: Protocol Buffers, "Encoding".
    """
    pos = 0

    def varint():
        nonlocal pos
        value = 0
        for shift in range(0, 70, 7):
            byte = data[pos]
            pos += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise IndexError

    try:
        while pos < len(data):
            tag = varint()
            number, wire = tag >> 3, tag & 7
            if wire == 0:
                yield number, varint()
                continue
            if wire not in (1, 2, 5):
                raise IndexError
            size = varint() if wire == 2 else {1: 8, 5: 4}[wire]
            if size > len(data) - pos:
                raise IndexError
            pos += size
            yield number, data[pos - size:pos]
    except IndexError:
        raise KshipraError("not a SentencePiece model, or cut short; fetch it again",
                           path, pos) from None


def _model_from_sentencepiece(data, path):
    """Return the model of a tokenizer.model.

    Source: sentencepiece, src/sentencepiece_model.proto: ModelProto has pieces = 1 (piece = 1,
    score = 2, type = 3), trainer_spec = 2 (model_type = 3; 2 is BPE), normalizer_spec = 3
    (precompiled_charsmap = 2, add_dummy_prefix = 3, remove_extra_whitespaces = 4).
    The types are those of GGUF.
    """
    texts, scores, types = [], [], []
    trainer, normalizer = {}, {}
    for number, value in _protobuf_fields(data, path):
        if number == 1:
            piece = dict(_protobuf_fields(value, path))
            types.append(piece.get(3, NORMAL))
            text = piece.get(1, b"")
            texts.append(text.replace(SPACE.encode(), b" ") if types[-1] == USER_DEFINED else text)
            scores.append(struct.unpack("<f", piece.get(2, bytes(4)))[0])
        elif number == 2:
            trainer = dict(_protobuf_fields(value, path))
        elif number == 3:
            normalizer = dict(_protobuf_fields(value, path))
    if trainer.get(3) != 2:
        raise KshipraError(f"model_type: {trainer.get(3, 1)} is not supported; "
                           "2 (BPE) is", path)
    if normalizer.get(2) or normalizer.get(4, 1):
        raise KshipraError("normalizer_spec: a character map or the removal of extra white space "
                           "is not supported", path)
    vocabulary = Vocabulary(texts, types)
    return SentencePiece(vocabulary, _rank_by_scores(vocabulary, scores),
                         "always" if normalizer.get(3, 1) else "never")


def load_tokenizer(path):
    """Return the Tokenizer of a GGUF file, vocabulary-only ones included, or an HF directory."""
    if os.path.isdir(path):
        return tokenizer_from_hf(path)
    return tokenizer_from_gguf(GGUF(path).metadata, path)


# ---------------------------------------------------------------------------------------
# 4. Reference


# ---------------------------------------------------------------------------------------
# 5. Machine code


# ---------------------------------------------------------------------------------------
# 6. Cache


# ---------------------------------------------------------------------------------------
# 7. Model


# ---------------------------------------------------------------------------------------
# 8. Sampling


# ---------------------------------------------------------------------------------------
# 9. Decoding


# ---------------------------------------------------------------------------------------
# 12. Front doors


# ---------------------------------------------------------------------------------------
# 13. The model in the file
