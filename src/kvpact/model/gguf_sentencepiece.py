"""SentencePiece BPE of a GGUF file (kind "llama"): merges follow from the scores, unknown characters fall back to bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer, decoders, models, normalizers

from kvpact.errors import ModelCorrupt, UnsupportedModel
from kvpact.model.gguf_read import GgufFile

#: SentencePiece writes a space as this character.
_SPACE = "▁"
_NORMAL = 1
_BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))


def sentencepiece_bpe(file: GgufFile, vocab: Mapping[str, int]) -> Tokenizer:
    """A `tokenizers.Tokenizer` without its added tokens.

    As llama.cpp reads such a file: a space is put before a text and behind every special token, unless
    `add_space_prefix` is false. Raises UnsupportedModel for what has no exact counterpart.
    """
    if file.get("tokenizer.ggml.remove_extra_whitespaces", False):
        raise UnsupportedModel(
            f"{file.path.name} has a tokenizer that folds white space", hint="use a folder with safetensors and tokenizer.json"
        )
    scores = [float(score) for score in file.require("tokenizer.ggml.scores")]
    if len(scores) != len(vocab):
        raise ModelCorrupt(f"{file.path.name} has {len(vocab)} tokens and {len(scores)} scores", hint="convert the model to GGUF anew")
    kinds = file.require("tokenizer.ggml.token_type")
    # Text that spells a control or byte token out is text: only normal tokens are built from pieces.
    normal = {token: token_id for token, token_id in vocab.items() if kinds[token_id] == _NORMAL}
    unknown = file.get("tokenizer.ggml.unknown_token_id")
    backend = Tokenizer(
        models.BPE(
            vocab=dict(vocab),
            merges=merges_of(normal, scores),
            unk_token=None if unknown is None else list(vocab)[int(unknown)],
            fuse_unk=True,
            byte_fallback=all(token in vocab for token in _BYTE_TOKENS),
        )
    )
    prefix = bool(file.get("tokenizer.ggml.add_space_prefix", True))
    replace = normalizers.Replace(" ", _SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace]) if prefix else replace
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return backend


def merges_of(vocab: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every pair of tokens of `vocab` that makes a token of it, best score of the whole first, then longest left part.

    Source: SentencePiece `bpe_model.cc` merges the neighbours whose whole scores best; the order among pairs of one whole
    is that of transformers' `generate_merges`.
    """
    merges = []
    for whole, whole_id in vocab.items():
        for cut in range(1, len(whole)):
            left, right = whole[:cut], whole[cut:]
            if left in vocab and right in vocab:
                merges.append((-scores[whole_id], -len(left), left, right))
    merges.sort()
    return [(left, right) for *_, left, right in merges]
