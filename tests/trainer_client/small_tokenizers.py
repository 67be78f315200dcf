"""Small tokenizers of the kinds that models use, trained on the spot."""

import json
from functools import cache
from itertools import chain

from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

CORPUS = [
    "### Step 1: We add 3 and 4, which is 7.\n### Step 2: Then we don't divide.\n",
    "### Step 3: \tThe sum , it's 12 !  Naïve café, Ünïcödé.\n\n### Step 10: done.\n",
    "日本語のテキスト 漢字かな 🙂🙃 👩‍👩‍👧 e\u0301 n\u0303 ",
] * 4
SPECIAL = ["<pad>", "</s>", "<unk>"]
SETTINGS = {"show_progress": False, "special_tokens": SPECIAL}


def wrapped(tokenizer, **options):
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", **options
    )


@cache
def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=380, **SETTINGS, initial_alphabet=alphabet),
    )
    return wrapped(tokenizer)


def said_by(*pieces):
    """A byte-level tokenizer of exactly these tokens, with ids from 0; <pad> and </s> follow them."""
    letters = bytes_to_unicode()
    vocabulary = {"".join(letters[byte] for byte in piece): index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<pad>", "</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>")


def byte_fallback(decoder):
    """BPE with byte fallback whose byte tokens are not special, which a trainer cannot produce."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.train_from_iterator(
        [line.replace("🙂", "").replace("漢", "").replace("\n", "") for line in CORPUS],
        trainers.BpeTrainer(vocab_size=220, **SETTINGS),
    )
    model = json.loads(trained.to_str())["model"]
    vocabulary = model["vocab"]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.add_special_tokens(SPECIAL)
    if decoder is not None:
        tokenizer.decoder = decoder
    return tokenizer


@cache
def llama():
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer = byte_fallback(decoders.Sequence(steps))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return wrapped(tokenizer)


@cache
def gemma():
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer = byte_fallback(decoders.Sequence(steps))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    return wrapped(tokenizer)


@cache
def unigram(prepend_scheme="always"):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend_scheme)
    tokenizer.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=200, **SETTINGS, unk_token="<unk>"))
    return wrapped(tokenizer)


@cache
def unigram_without_prefix():
    return unigram("never")


@cache
def word_piece(**options):
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=200, **SETTINGS))
    return wrapped(tokenizer, **options)


@cache
def cleaned():
    """A tokenizer whose decoder cleans up spaces across several tokens."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(CORPUS, trainers.WordLevelTrainer(**SETTINGS))
    return wrapped(tokenizer, clean_up_tokenization_spaces=True)


@cache
def in_python():
    """A token per byte, without the tokenizers library; bytes that are not UTF-8 are dropped."""
    return ByT5Tokenizer()


JOINING = {
    "byte-level": byte_level,
    "llama": llama,
    "gemma": gemma,
    "unigram": unigram,
    "unigram without prefix": unigram_without_prefix,
}
OTHERS = {"wordpiece": word_piece, "cleaned": cleaned, "python": in_python}
ALL = JOINING | OTHERS


TEXTS = [*CORPUS, "### Step 2: ", "\n", "🙂", "é漢", "<think>", "don't .", "e\u0301", " ", "\t"]


def encode(tokenizer, text):
    """The ids of a text, without the tokenizer's special tokens around it."""
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def responses(tokenizer, max_size=12):
    """What a policy might sample: texts, cut anywhere, with arbitrary tokens between them."""
    any_ids = st.lists(st.integers(0, len(tokenizer) - 1), min_size=1, max_size=3)
    special = st.sampled_from(sorted(tokenizer.all_special_ids)).map(lambda index: [index])
    texts = st.sampled_from([encode(tokenizer, text) for text in TEXTS])
    cut = st.tuples(texts, st.integers(0, 8), st.integers(1, 12)).map(lambda drawn: drawn[0][drawn[1] :][: drawn[2]])
    parts = st.lists(st.one_of(texts, cut, any_ids, special), max_size=max_size)
    return parts.map(lambda drawn: list(chain.from_iterable(drawn)))


@st.composite
def sampled(draw, kinds=tuple(ALL)):
    """A tokenizer and the ids of a response."""
    tokenizer = ALL[draw(st.sampled_from(sorted(kinds)))]()
    return tokenizer, draw(responses(tokenizer))


def decode(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True)


def ids_of(tokenizer, *tokens):
    return [tokenizer.convert_tokens_to_ids(token) for token in tokens]


def bytes_of(tokenizer, text):
    """The ids of a text's bytes, in a vocabulary with byte fallback."""
    return ids_of(tokenizer, *(f"<0x{byte:02X}>" for byte in text))
