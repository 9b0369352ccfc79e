"""The offline API, as code that comes from vLLM uses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvpact import LLM, SamplingParams
from kvpact.errors import EmptyPrompt, InvalidConfig, InvalidParameter, ModelNotFound, UnknownSwitch, UnsupportedModel

GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    from tiny_models import save_tiny_model

    folder = tmp_path_factory.mktemp("llm")
    save_tiny_model(folder, "llama")
    return LLM(str(folder), max_num_seqs=4, kv_cache_memory=4 << 20)


def test_outputs_come_in_the_order_of_the_prompts_whatever_ends_first(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (9, 1, 4)]
    outputs = llm.generate(["long", {"prompt": "short"}, {"prompt_token_ids": [1, 2, 3]}], params, use_tqdm=False)
    assert [output.prompt for output in outputs] == ["long", "short", None]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [9, 1, 4]
    assert all(output.finished for output in outputs)


def test_one_prompt_needs_no_list(llm: LLM) -> None:
    assert llm.generate("one", GREEDY)[0].outputs[0].text == llm.generate(["one"], GREEDY)[0].outputs[0].text


def test_more_prompts_than_seats_all_get_their_answer(llm: LLM) -> None:
    outputs = llm.generate([f"prompt {i}" for i in range(11)], GREEDY, use_tqdm=False)
    assert [output.prompt for output in outputs] == [f"prompt {i}" for i in range(11)]


def test_one_bad_prompt_refuses_the_call_and_leaves_the_engine_empty(llm: LLM) -> None:
    with pytest.raises(EmptyPrompt):
        llm.generate(["good", {"prompt_token_ids": []}], GREEDY)
    assert not llm.engine.has_unfinished()
    assert llm.engine.manager.usage().held == 0
    assert len(llm.generate("good", GREEDY)) == 1


def test_a_stream_grows_token_by_token_and_ends_with_the_whole_text(llm: LLM) -> None:
    outputs = list(llm.stream("stream", GREEDY))
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2, 3, 4, 5]
    texts = [output.outputs[0].text for output in outputs]
    assert all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:], strict=False))
    assert texts[-1] == llm.generate("stream", GREEDY)[0].outputs[0].text


def test_closing_a_stream_gives_its_blocks_back(llm: LLM) -> None:
    stream = llm.stream("stream", SamplingParams(max_tokens=50))
    next(stream)
    stream.close()
    assert not llm.engine.has_unfinished()
    assert llm.engine.manager.usage().held == 0


def test_chat_without_a_template_says_so(llm: LLM) -> None:
    with pytest.raises(UnsupportedModel, match="chat template"):
        llm.chat([{"role": "user", "content": "hello"}], GREEDY)


def test_unequal_numbers_of_prompts_and_parameters_are_refused(llm: LLM) -> None:
    with pytest.raises(InvalidParameter, match="2 entries for 1"):
        llm.generate("one", [GREEDY, GREEDY])


def test_unknown_options_switches_and_models_are_refused_by_name(tiny_folder: Callable[[str], Path]) -> None:
    with pytest.raises(InvalidConfig, match="gpu_memory"):
        LLM(str(tiny_folder("llama")), gpu_memory=1)
    with pytest.raises(UnknownSwitch, match="cuda_graphs"):
        LLM(str(tiny_folder("llama")), switches=["cuda_graphs=on"])
    with pytest.raises(ModelNotFound):
        LLM("no-such-model")
