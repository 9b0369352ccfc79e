"""What a callable's abilities rest on, in the words of who wrote it: KV002 says them where one is untrue."""

from __future__ import annotations

from kvpact.doctor.claim import Claim

STEP_FORM = (
    "give (logits, state): logits [rows, vocab] of each row's last token ([rows, 1, vocab] too), or a list of [tokens of the row, vocab]"
)
GENERATE_FORM = "give a list with one item a prompt: (tokens, scores), scores [tokens, vocab] or [tokens], or the tokens alone"

BATCH = Claim(
    what="a step that is given several rows does not answer each of them",
    expected="for two rows of tokens, scores of two rows; padding cut off",
    cause="the loop answers the first row only, joins the rows, or gives scores of its padding back",
    cure=f"{STEP_FORM}; or raise NotImplementedError for more than one row, and rules that need a batch are skipped",
)
CHUNK = Claim(
    what="a step that is given several tokens after its first call does not answer them",
    expected="scores of the last token, or of each token that was given",
    cause="after the first call the loop reckons with one token, or shows rows of the whole context",
    cure=f"{STEP_FORM}; or raise NotImplementedError for more than one token, and rules that need pieces are skipped",
)
PADDING = Claim(
    what="the step has an argument pad_id, and breaks off when it is given",
    expected="step(token_ids, state, pad_id=3) pads short rows with token 3",
    cause="the argument is there for something else, or not every id is taken",
    cure="take any id of the vocabulary, or call the argument otherwise",
)
TOGETHER = Claim(
    what="generate does not answer each of several prompts",
    expected="for two prompts, two items",
    cause="the loop answers the first prompt only, or joins them",
    cure=f"{GENERATE_FORM}; or raise NotImplementedError for more than one prompt, and rules that need a batch are skipped",
)
_OTHERWISE = "name it otherwise if it is not meant for the doctor"


def truncate(where: str) -> Claim:
    return Claim(
        what=f"`truncate` of {where} does not give a state that the step can go on from",
        expected="truncate(state, 4) gives the state of the first 4 tokens, and step([[token]], that state) goes on from there",
        cause="it breaks off, gives nothing back, or is a function for something else",
        cure=f"give the state back, even where it was cut in place; {_OTHERWISE}",
    )


def reorder(where: str) -> Claim:
    return Claim(
        what=f"`reorder` of {where} does not give a state that the step can go on from",
        expected="reorder(state, [1, 0]) gives the state in which two rows have changed places, and the step goes on from there",
        cause="it breaks off, gives nothing back, or is a function for something else",
        cure=f"give the state back, even where it was changed in place; {_OTHERWISE}",
    )


def copyable(where: str) -> Claim:
    return Claim(
        what=f"`copyable = True` of {where} is untrue: the step can't go on from a copy of the state",
        expected="copy.deepcopy(state) gives a state of its own, and the step goes on from there",
        cause="the state holds what can't be copied: a lock, a file, a generator, a tensor with a gradient",
        cure="give the state a __deepcopy__ that copies entries and shares the rest, or take `copyable` out",
    )
