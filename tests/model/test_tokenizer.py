"""Text to ids and back: equal to llama.cpp's and transformers', without importing transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from kvpact.errors import InvalidParameter, ModelCorrupt, UnsupportedModel
from kvpact.model.gguf_convert import convert_gguf
from kvpact.model.tokenizer import Tokenizer

CASES = json.loads((Path(__file__).parent / "data" / "smollm2_tokens.json").read_text(encoding="utf-8"))["cases"]
#: Bytes that no token of SmolLM2 stands for: some control characters, and lead bytes of planes without characters.
MISSING_BYTES = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}


@pytest.fixture(scope="module")
def real(smollm2) -> Tokenizer:
    return Tokenizer.load(smollm2.path)


@pytest.fixture
def folder(tiny_llama, tmp_path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    convert_gguf(tiny_llama, folder)
    return folder


@pytest.fixture
def tiny(folder) -> Tokenizer:
    return Tokenizer.load(folder)


def test_the_default_models_ids_are_llama_cpps(real):
    assert len(CASES) > 50
    assert [real.encode(case["text"]) for case in CASES] == [case["ids"] for case in CASES]


def test_the_default_models_text_comes_back_from_its_ids(real):
    assert [real.decode(case["ids"], skip_special_tokens=False) for case in CASES] == [case["text"] for case in CASES]


def test_digits_split_differently_without_the_models_own_rule(real):
    """Inverse: the fixture notices a GPT-2 split, which is what a reader that ignores `tokenizer.ggml.pre` uses."""
    from tokenizers import Tokenizer as Backend
    from tokenizers.pre_tokenizers import ByteLevel

    other = Backend.from_str(real.backend.to_str())
    other.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=True)
    assert [other.encode(case["text"]).ids for case in CASES] != [case["ids"] for case in CASES]


def test_bytes_that_the_vocabulary_lacks_are_dropped_as_by_llama_cpp(real):
    assert real.encode("a\U00040000b") == [81, 218, 218, 218, 82]
    assert real.encode("\x05\x7f\x80") == [194, 217, 141, 218]
    assert real.decode(real.encode("a\x04b")) == "ab"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=40))
@example(text="\ufeff<|im_end|> \n")
def test_any_text_comes_back_whose_bytes_the_vocabulary_has(text, real):
    assume(not MISSING_BYTES & set(text.encode()))
    assert real.decode(real.encode(text), skip_special_tokens=False) == text


def test_transformers_reads_the_converted_tokenizer_alike(smollm2, real):
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(smollm2.path)
    for case in CASES:
        assert reference(case["text"])["input_ids"] == case["ids"]
        assert reference.decode(case["ids"], skip_special_tokens=True) == real.decode(case["ids"])


@pytest.mark.slow
def test_transformers_own_reading_of_the_gguf_differs_only_where_it_ignores_the_digit_rule(smollm2, real, tmp_path):
    from transformers import AutoTokenizer

    from kvpact.model.resolve import fetch_source

    source = fetch_source("smollm2-135m", cache_dir=tmp_path, progress=False)
    reference = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    different = [case["text"] for case in CASES if reference(case["text"])["input_ids"] != real.encode(case["text"])]
    assert different
    assert all(any(character.isnumeric() for character in text) for text in different)


def test_loading_imports_neither_transformers_nor_the_hub_nor_torch(folder):
    code = (
        "import sys; from kvpact.model.tokenizer import Tokenizer\n"
        f"t = Tokenizer.load({str(folder)!r}); t.encode('hello'); t.apply_chat_template([{{'role': 'user', 'content': 'x'}}])\n"
        "print(sorted({'transformers', 'huggingface_hub', 'torch', 'gguf', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_special_tokens_are_kept_or_skipped_as_asked(tiny):
    ids = tiny.encode("hello<|im_end|>")
    assert ids == [262, 2]
    assert tiny.decode(ids) == "hello"
    assert tiny.decode(ids, skip_special_tokens=False) == "hello<|im_end|>"


def test_bos_and_eos_are_put_round_a_prompt_only_when_the_file_asks(write_gguf, llama_parts, tmp_path):
    convert_gguf(write_gguf(*llama_parts, add_bos_token=True, add_eos_token=True), tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("hello") == [1, 262, 2]
    assert tokenizer.encode("hello", add_special_tokens=False) == [262]
    convert_gguf(write_gguf(*llama_parts, add_bos_token=False), tmp_path)
    assert Tokenizer.load(tmp_path).encode("hello") == [262]


def test_a_chat_text_gets_no_second_bos_when_encoded_as_documented(write_gguf, llama_parts, tmp_path):
    convert_gguf(write_gguf(*llama_parts, add_bos_token=True), tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], add_generation_prompt=False)
    assert tokenizer.encode(text, add_special_tokens=False).count(1) == 1
    assert tokenizer.encode(text).count(1) == 2


def test_llama3_files_put_bos_first_unless_told_otherwise(write_gguf, llama_parts, tmp_path):
    convert_gguf(write_gguf(*llama_parts, pre="llama-bpe"), tmp_path)
    assert Tokenizer.load(tmp_path).encode("hello") == [1, 262]


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "x  123 it's", ["x", "Ġ", "Ġ123", "Ġit", "'s"]),
        ("smollm", "x  123 it's", ["x", "ĠĠ", "1", "2", "3", "Ġit", "'s"]),
        ("qwen2", "x  123 IT'S", ["x", "Ġ", "Ġ", "1", "2", "3", "ĠIT", "'S"]),
        ("llama-bpe", "x  1234 IT'S", ["x", "Ġ", "Ġ", "123", "4", "ĠIT", "'S"]),
    ],
)
def test_each_rule_splits_as_its_family_does(pre, text, pieces, write_gguf, llama_parts, tmp_path):
    convert_gguf(write_gguf(*llama_parts, pre=pre), tmp_path)
    backend = Tokenizer.load(tmp_path).backend
    assert [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)] == pieces


def test_a_rule_that_is_not_known_is_refused_with_the_list(write_gguf, llama_parts, tmp_path):
    with pytest.raises(UnsupportedModel, match="splits text by the rule 'tekken'") as caught:
        convert_gguf(write_gguf(*llama_parts, pre="tekken"), tmp_path)
    assert "gpt-2, llama-bpe, qwen2, smollm" in caught.value.hint
    with pytest.raises(UnsupportedModel, match="rule 'default'"):
        convert_gguf(write_gguf(*llama_parts, pre="default"), tmp_path)


def test_every_source_of_eos_counts(folder):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    config = {"eos_token": {"content": "<|endoftext|>"}, "chat_template": "{{ messages[0]['content'] }}<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.load(folder).eos_token_ids == {5, 6, 7, 0, 2}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": "no turn ends here"}))
    assert Tokenizer.load(folder).eos_token_ids == {5, 6, 7, 0}


def test_a_model_without_any_eos_has_none(folder):
    for name in ("generation_config.json", "config.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    assert Tokenizer.load(folder).eos_token_ids == frozenset()


def test_a_prompt_is_never_cut_or_filled_up(folder):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
                          "pad_token": "<|endoftext|>"}  # fmt: skip
    path.write_text(json.dumps(content))
    assert len(Tokenizer.load(folder).encode("xyzw")) == 4


def test_text_that_is_no_unicode_and_ids_that_do_not_exist_are_refused(tiny):
    with pytest.raises(InvalidParameter, match="surrogate pair at character 1"):
        tiny.encode("x\ud800")
    with pytest.raises(InvalidParameter, match="is a bytes"):
        tiny.encode(b"x")  # type: ignore[arg-type]
    for token_id in (-1, 263):
        with pytest.raises(InvalidParameter, match=rf"token id {token_id} is not in \[0, 263\)"):
            tiny.decode([3, token_id])


def test_a_folder_without_a_tokenizer_or_with_a_damaged_one_is_refused(folder):
    (folder / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(ModelCorrupt, match=r"tokenizer\.json \(10 bytes\)"):
        Tokenizer.load(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UnsupportedModel, match=r"no tokenizer\.json"):
        Tokenizer.load(folder)


def test_merges_that_name_no_token_are_corrupt(llama_parts, tmp_path):
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "bad.gguf", "gpt2")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["a", "b"])
    writer.add_token_merges(["a z"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    from kvpact.model.gguf_read import GgufFile
    from kvpact.model.gguf_tokenizer import tokenizer_files

    with pytest.raises(ModelCorrupt, match="vocabulary and merges disagree"):
        tokenizer_files(GgufFile(tmp_path / "bad.gguf"))
