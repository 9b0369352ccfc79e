"""Chat templates render as in transformers, in a sandbox, and refuse with the template's own words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvpact.errors import InvalidParameter, UnsupportedModel
from kvpact.model.chat_template import ChatTemplate
from kvpact.model.gguf_convert import convert_gguf
from kvpact.model.tokenizer import Tokenizer

USER = [{"role": "user", "content": "Hi <b>&amp; 'you'</b> é😀"}]
TALK = [
    {"role": "system", "content": "Be brief."},
    *USER,
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "  why?\n"},
]

#: Written to touch white space, loops, filters, functions and tags that published templates use.
RICH = """
{%- set ns = namespace(found=false) -%}
{{ bos_token }}
{%- for message in messages %}
    {%- if message.role == 'skip' %}{% continue %}{% endif %}
  {% if loop.first %}
first
  {% endif %}
    {%- generation %}
    {{- message['content'] | trim }}
    {%- endgeneration %}
{{ message | tojson }}{{ {'b': [1, 2], 'a': '<é>'} | tojson(indent=2) }}
{%- set ns.found = true %}
{%- endfor %}
{%- if tools is not none and tools %}TOOLS {{ tools | tojson }}{% endif %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}{{ ns.found }}{{ messages[-1].content[:3].split('h') }}
"""


def render(source: str, messages: Any = USER, **options: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, **options)


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("messages", [USER, TALK])
def test_the_default_models_text_is_transformers(smollm2, messages, add_generation_prompt):
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(smollm2.path)
    tokenizer = Tokenizer.load(smollm2.path)
    expected = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt)
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=add_generation_prompt)
    assert text == expected
    ids = reference.apply_chat_template(messages, add_generation_prompt=add_generation_prompt, return_dict=False)
    assert tokenizer.encode(text, add_special_tokens=False) == ids


@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "f", "parameters": {}}}]])
def test_white_space_filters_and_tags_are_transformers(tools):
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [*TALK, {"role": "skip", "content": "unseen"}]
    expected = render_jinja_template([messages], tools=tools, chat_template=RICH, add_generation_prompt=True, bos_token="<s>")[0]
    assert render(RICH, messages, tools=tools) == (expected[0] if isinstance(expected, list) else expected)
    assert "unseen" not in render(RICH, messages).split("why?")[0]


def test_a_template_that_refuses_says_why_in_its_own_words():
    with pytest.raises(InvalidParameter, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize("source", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ messages[0].update({'a': 1}) }}"])
def test_a_template_cannot_leave_the_sandbox_or_change_the_messages(source):
    with pytest.raises(InvalidParameter):
        render(source)
    assert USER == [{"role": "user", "content": "Hi <b>&amp; 'you'</b> é😀"}]


def test_other_faults_of_a_template_are_refusals_too():
    with pytest.raises(InvalidParameter, match="refuses these messages"):
        render("{{ messages[0]['content'] + 1 }}")
    with pytest.raises(InvalidParameter, match="division by zero"):
        render("{{ 1 / 0 }}")


def test_a_template_that_does_not_compile_is_not_supported():
    with pytest.raises(UnsupportedModel, match="can't be compiled"):
        render("{% for %}")


@pytest.mark.parametrize("messages", ["hello", {"role": "user"}, [], ["hello"], [{"content": "x"}], [{"role": 1, "content": "x"}]])
def test_what_is_no_list_of_messages_is_refused(messages):
    with pytest.raises(InvalidParameter):
        render("{{ messages }}", messages)


def test_the_date_can_be_asked_for():
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10


def test_extra_values_reach_the_template():
    assert render("{{ enable_thinking }}", enable_thinking=False) == "False"


def test_a_model_without_a_template_says_what_to_do_instead(tiny_llama, tmp_path):
    convert_gguf(tiny_llama, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UnsupportedModel, match="no chat template") as caught:
        Tokenizer.load(tmp_path).apply_chat_template(USER)
    assert "prompt's text instead" in caught.value.hint


def test_a_template_of_its_own_file_comes_before_the_configurations(tiny_llama, tmp_path):
    convert_gguf(tiny_llama, tmp_path)
    assert Tokenizer.load(tmp_path).apply_chat_template(USER).startswith("<|im_start|>user")
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "default"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert Tokenizer.load(tmp_path).apply_chat_template(USER) == "default"
    (tmp_path / "chat_template.jinja").write_text("own file")
    assert Tokenizer.load(tmp_path).apply_chat_template(USER) == "own file"
