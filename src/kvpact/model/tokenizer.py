"""Text to token ids and back, and chat messages to text: tokenizers and jinja2 only, so that a start takes no seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from kvpact.errors import InvalidParameter, ModelCorrupt, UnsupportedModel
from kvpact.ids import TokenId
from kvpact.model.folder import read_json

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
#: Ends of a turn. A model whose template writes one stops there, even when its configuration names the end of text only.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>")


class Tokenizer:
    """backend: the `tokenizers.Tokenizer`. eos_token_ids: every id that ends an answer.

    A text that `apply_chat_template` made already holds its special tokens: encode it with `add_special_tokens=False`,
    or a model that asks for bos gets it twice.
    """

    def __init__(self, backend: tokenizers.Tokenizer, *, eos_token_ids: Iterable[int], special: Mapping[str, str], template: str | None):
        self.backend = backend
        self.eos_token_ids = frozenset(TokenId(token_id) for token_id in eos_token_ids)
        self.special_tokens = dict(special)
        self.chat_template = template
        self._compiled: Any = None

    @classmethod
    def load(cls, path: Path | str) -> Tokenizer:
        """From a model folder. Raises UnsupportedModel without tokenizer.json, ModelCorrupt for a damaged one."""
        folder = Path(path)
        backend = _load_backend(folder)
        config = _optional_json(folder / "tokenizer_config.json")
        special = _special_tokens(folder, config)
        template = _template_source(folder, config)
        ends = _eos_ids(folder, backend, special, template)
        return cls(backend, eos_token_ids=ends, special=special, template=template)

    @property
    def vocab_size(self) -> int:
        """Ids that can be decoded: those of the vocabulary and the added tokens."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat_template` has something to apply."""
        return self.chat_template is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[TokenId]:
        """Token ids of a text. add_special_tokens: bos and the like, as tokenizer.json's template puts them round a prompt.

        A special token that the text spells out becomes that token in either case.
        """
        if not isinstance(text, str):
            raise InvalidParameter(f"a prompt's text is a {type(text).__name__}", hint='give a str, or {"prompt_token_ids": [...]}')
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidParameter(
                f"the text is not Unicode: half a surrogate pair at character {error.start}", hint="decode the bytes it came from as UTF-8"
            ) from None
        return [TokenId(token_id) for token_id in self.backend.encode(text, add_special_tokens=add_special_tokens).ids]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; raises InvalidParameter for an id that does not exist."""
        size = self.vocab_size
        for token_id in ids:
            if not 0 <= token_id < size:
                raise InvalidParameter(f"token id {token_id} is not in [0, {size})", hint="take ids from this model's tokenizer")
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def token_text(self, token_id: int) -> str:
        """One token's text by itself; special tokens show, and a part of a character is a replacement character."""
        return str(self.backend.decode([token_id], skip_special_tokens=False))

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **extra: Any) -> str:
        """Text of a conversation. Encode it with `add_special_tokens=False`.

        extra: what the template may ask for beside messages (tools, documents, enable_thinking, ...).
        Raises UnsupportedModel when the model has no template, InvalidParameter when the template refuses.
        """
        if self._compiled is None:
            self._compiled = self._compile()
        return str(self._compiled.render(messages, add_generation_prompt=add_generation_prompt, **extra))

    def _compile(self) -> Any:
        if self.chat_template is None:
            raise UnsupportedModel(
                "this model has no chat template, so messages have no text",
                hint="send a prompt's text instead, or use a model tuned for chat",
            )
        from kvpact.model.chat_template import ChatTemplate

        return ChatTemplate(self.chat_template, self.special_tokens)


def _load_backend(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UnsupportedModel(
            f"{folder} has no tokenizer.json", hint="write it with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(folder)"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise ModelCorrupt(f"{path} ({path.stat().st_size:,} bytes) can't be read: {error}", hint="delete it and fetch it again") from error
    # Settings of a training run that some files still carry; a prompt must be neither cut nor filled up in silence.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _optional_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = read_json(path)
    if not isinstance(content, dict):
        raise ModelCorrupt(f"{path} holds no JSON object", hint="delete it and fetch it again")
    return content


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for source in (_optional_json(folder / "special_tokens_map.json"), config):
        for name in _SPECIAL:
            value = source.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[name] = text
    return found


def _template_source(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The template, from a file of its own before tokenizer_config.json, as transformers looks for it."""
    own = folder / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    source = _optional_json(folder / "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(source, list):
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    return source if isinstance(source, str) else None


def _eos_ids(folder: Path, backend: tokenizers.Tokenizer, special: Mapping[str, str], template: str | None) -> set[int]:
    ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = _optional_json(folder / name).get("eos_token_id")
        ids.update(value if isinstance(value, list) else [] if value is None else [value])
    tokens = [special["eos_token"]] if "eos_token" in special else []
    tokens += [token for token in _TURN_ENDS if token in (template or "")]
    ids.update(token_id for token in tokens if (token_id := backend.token_to_id(token)) is not None)
    return ids
