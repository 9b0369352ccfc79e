"""Tokenizer of a GGUF file, as tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from kvpact.errors import ModelCorrupt, UnsupportedModel
from kvpact.model.gguf_read import GgufFile
from kvpact.model.gguf_sentencepiece import sentencepiece_bpe

# Kinds of token: llama.cpp `include/llama.h`, llama_token_attr; gguf.TokenType.
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

_LLAMA3_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _gpt2_split() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm_split() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2_split()])


def _regex_split(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


#: `tokenizer.ggml.pre` that can be converted. Each is how the original tokenizer.json of that family splits.
PRE_TOKENIZERS: Mapping[str, Callable[[], pre_tokenizers.PreTokenizer]] = MappingProxyType(
    {
        "gpt-2": _gpt2_split,
        "smollm": _smollm_split,
        "llama-bpe": lambda: _regex_split(_LLAMA3_SPLIT),
        "qwen2": lambda: _regex_split(_QWEN2_SPLIT),
    }
)


def tokenizer_files(file: GgufFile) -> dict[str, dict[str, Any]]:
    """Content of tokenizer.json and tokenizer_config.json.

    Raises UnsupportedModel for a kind of tokenizer, or a rule of splitting, that is not known exactly.
    """
    kind = file.require("tokenizer.ggml.model")
    if kind not in _KINDS:
        raise UnsupportedModel(
            f"{file.path.name} has a tokenizer of kind {kind!r}, which can't be converted",
            hint="GGUF tokenizers that can be: gpt2 (byte-level BPE), llama (SentencePiece BPE); "
            "else use a folder with safetensors and tokenizer.json",
        )
    tokens = [str(token) for token in file.require("tokenizer.ggml.tokens")]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise ModelCorrupt(
            f"{file.path.name}: {len(tokens) - len(vocab)} of {len(tokens)} tokens occur twice", hint="convert the model to GGUF anew"
        )
    backend = _KINDS[kind](file, vocab)
    _add_special_tokens(backend, file, tokens)
    # llama.cpp's defaults, for files that do not say.
    bos = kind == "llama" or file.get("tokenizer.ggml.pre") == "llama-bpe"
    _add_template(backend, file, tokens, bos=bos)
    return {"tokenizer.json": json.loads(backend.to_str()), "tokenizer_config.json": _config(file, tokens)}


def _pre_name(file: GgufFile) -> str:
    pre = str(file.get("tokenizer.ggml.pre", "default"))
    # Files older than `pre`, and those that say "default", are told apart by the architecture only for GPT-2 itself.
    if pre == "default" and file.architecture == "gpt2":
        return "gpt-2"
    if pre not in PRE_TOKENIZERS:
        raise UnsupportedModel(
            f"{file.path.name} splits text by the rule {pre!r}, which is not known exactly",
            hint=f"rules that are: {', '.join(sorted(PRE_TOKENIZERS))}; else use a folder with safetensors and tokenizer.json",
        )
    return pre


def _byte_level_bpe(file: GgufFile, vocab: Mapping[str, int]) -> Tokenizer:
    pre = _pre_name(file)
    merges = [_merge(str(line)) for line in file.require("tokenizer.ggml.merges")]
    # llama-bpe: a piece that is a token as a whole is taken as it is (llama.cpp `llama-vocab.cpp`).
    try:
        backend = Tokenizer(models.BPE(vocab=dict(vocab), merges=merges, ignore_merges=pre == "llama-bpe"))
    except Exception as error:  # tokenizers raises plain Exception
        raise ModelCorrupt(f"{file.path.name}: vocabulary and merges disagree: {error}", hint="convert the model to GGUF anew") from error
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = PRE_TOKENIZERS[pre]()
    backend.decoder = decoders.ByteLevel()
    return backend


def _merge(line: str) -> tuple[str, str]:
    # A byte-level alphabet writes a space as another character, so the one that is here separates.
    left, _, right = line.partition(" ")
    return left, right


def _add_special_tokens(backend: Tokenizer, file: GgufFile, tokens: list[str]) -> None:
    kinds = file.get("tokenizer.ggml.token_type", [])
    for token, kind in zip(tokens, kinds, strict=False):
        if kind in (_CONTROL, _UNKNOWN):
            backend.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == _USER_DEFINED:
            backend.add_tokens([AddedToken(token, special=False, normalized=False)])


def _add_template(backend: Tokenizer, file: GgufFile, tokens: list[str], *, bos: bool) -> None:
    """Put bos before and eos after a text, where the file asks for it; `bos` where it does not say."""
    template = ["$A"]
    special = []
    for name, first, default in (("bos", True, bos), ("eos", False, False)):
        token_id = file.get(f"tokenizer.ggml.{name}_token_id")
        if token_id is None or not file.get(f"tokenizer.ggml.add_{name}_token", default):
            continue
        token = tokens[int(token_id)]
        special.append((token, int(token_id)))
        template = [token, *template] if first else [*template, token]
    if special:
        backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)


_KINDS: Mapping[str, Callable[[GgufFile, Mapping[str, int]], Tokenizer]] = MappingProxyType(
    {"gpt2": _byte_level_bpe, "llama": sentencepiece_bpe}
)


def _config(file: GgufFile, tokens: list[str]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(file.require_own("context_length")),
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = file.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None:
            config[f"{name}_token"] = tokens[int(token_id)]
    template = file.get("tokenizer.chat_template")
    if template is not None:
        config["chat_template"] = template
    return config
