"""Token ids for servers that take text only: each stands for a common word, so that growing a context leaves its start as it was."""

from __future__ import annotations

from collections.abc import Sequence

# Short words that most tokenisers know as one token with the space before it.
_LIST = (
    "time year people way day man thing woman life child world school state family student group country problem hand part place case "
    "week company system program question work night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line end member law car city name "
    "president team minute idea body back parent face others level office door health person art war history party result change "
    "morning reason research girl guy moment air teacher force education foot boy age policy music market sense nation plan college "
    "interest death experience effect use class control care field development role rate heart drug show leader light voice wife "
    "police mind price report decision son view town road arm difference value building action season society tax director position "
    "player record paper space ground form event official matter center couple site project base star table need court oil situation "
    "cost industry figure street image phone data picture practice piece land product doctor wall patient worker news test movie "
    "north love support technology"
)
WORDS = tuple(_LIST.split())


def text_of(tokens: Sequence[int]) -> str:
    return "".join(f" {WORDS[token]}" for token in tokens)
