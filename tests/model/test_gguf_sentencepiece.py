"""SentencePiece vocabularies of GGUF files: ids equal to sentencepiece's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers

from kvpact.errors import ModelCorrupt, UnsupportedModel
from kvpact.model.gguf_read import GgufFile
from kvpact.model.gguf_tokenizer import tokenizer_files

FIXTURE = json.loads((Path(__file__).parent / "data" / "sentencepiece_tokens.json").read_text(encoding="utf-8"))
CASES = FIXTURE["cases"]


def converted(path: Path, *, scores: list[float] | None = None, kind: str = "llama", **flags: Any) -> tokenizers.Tokenizer:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_tokenizer_model(kind)
    writer.add_token_list(FIXTURE["tokens"])
    writer.add_token_scores(FIXTURE["scores"] if scores is None else scores)
    writer.add_token_types(FIXTURE["kinds"])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, value in flags.items():
        writer.add_bool(f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tokenizers.Tokenizer.from_str(json.dumps(tokenizer_files(GgufFile(path))["tokenizer.json"]))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sentencepiece.gguf"


def test_ids_are_sentencepieces_and_text_comes_back(path):
    backend = converted(path)
    assert len(CASES) >= 40
    assert [backend.encode(case["text"], add_special_tokens=False).ids for case in CASES] == [case["ids"] for case in CASES]
    assert [backend.decode(case["ids"], skip_special_tokens=False) for case in CASES] == [case["text"] for case in CASES]


def test_other_scores_give_other_ids(path):
    """Inverse: the order of merges does come from the scores."""
    backend = converted(path, scores=[-score for score in FIXTURE["scores"]])
    assert [backend.encode(case["text"], add_special_tokens=False).ids for case in CASES] != [case["ids"] for case in CASES]


def test_bos_comes_first_unless_the_file_says_otherwise(path):
    assert converted(path).encode("x").ids[0] == 1
    assert 1 not in converted(path, add_bos_token=False).encode("x").ids


def test_a_space_is_put_first_unless_the_file_says_otherwise(path):
    assert converted(path).encode("he").tokens == ["<s>", "▁", "he"]
    bare = converted(path, add_space_prefix=False)
    assert bare.encode("he").tokens == ["<s>", "he"]
    assert bare.decode(bare.encode(" he").ids) == " he"


def test_a_spelled_out_control_token_is_that_token_and_a_spelled_out_byte_is_text(path):
    backend = converted(path)
    assert backend.encode("</s>", add_special_tokens=False).ids == [2]
    ids = backend.encode("<0x41>", add_special_tokens=False).ids
    assert FIXTURE["tokens"].index("<0x41>") not in ids
    assert backend.decode(ids) == "<0x41>"


def test_kinds_and_rules_that_are_not_known_are_refused_by_name(path):
    with pytest.raises(UnsupportedModel, match="tokenizer of kind 'bert'") as caught:
        converted(path, kind="bert")
    assert "gpt2 (byte-level BPE), llama (SentencePiece BPE)" in caught.value.hint
    with pytest.raises(UnsupportedModel, match="folds white space"):
        converted(path, remove_extra_whitespaces=True)


def test_a_token_without_a_score_is_corrupt(path):
    with pytest.raises(ModelCorrupt, match="700 tokens and 699 scores"):
        converted(path, scores=FIXTURE["scores"][1:])
