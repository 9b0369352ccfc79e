"""Which public reports are rebuilt, by which double: those that state their cause and that a tiny model is enough for.

A cause is told in our own words, as the report or its fix states it. What is not rebuilt says why.
"""

from __future__ import annotations

from dataclasses import dataclass

#: By the first column of the page.
KINDS = {
    "K1": "mask and padding",
    "K2": "positions",
    "K3": "isolation between requests and calls",
    "K4": "prefix reuse",
    "K5": "beams, drafts and rewinding",
    "K6": "blocks and reference counts",
    "K7": "quantised entries",
    "K8": "windows, sinks and layers of both kinds",
    "K9": "time and memory",
    "K10": "misuse of an interface",
    "K11": "servers and tenants",
}


@dataclass(frozen=True, kw_only=True)
class Reported:
    """reports: of one cause, as owner/repository#number, the chief one first. double: by name, None where it is not rebuilt, and then
    `why` tells. partly: the report states a part of its cause only, so that its double is no proof for it."""

    kind: str
    reports: tuple[str, ...]
    cause: str
    double: str | None = None
    why: str = ""
    partly: bool = False


def _of(kind: str, reports: str, cause: str, double: str | None = None, why: str = "", partly: bool = False) -> Reported:
    return Reported(kind=kind, reports=tuple(reports.split()), cause=cause, double=double, why=why, partly=partly)


_NO_COST_RULE = "shows in cost alone, and the doctor's rules of cost are not part of this comparison"

REPORTED = (
    _of(
        "K1",
        "huggingface/transformers#47651",
        "query rows that see nothing spoil a kernel's tile at 32 k + 1 columns",
        "fully-masked-rows-spoil-the-tile",
    ),
    _of(
        "K1",
        "huggingface/transformers#30400",
        "single steps get no mask and attend to empty slots of the buffer",
        "unwritten-slots-visible",
    ),
    _of("K1", "huggingface/transformers#30670", "the loop gives the mask to the prompt only", "padding-mask-not-passed-at-decode"),
    _of("K1", "huggingface/transformers#48748", "a mask of the model's own switches the causal one off", "prompt-without-causal-mask"),
    _of(
        "K1",
        "meta-pytorch/gpt-fast#233",
        "an update returns the whole buffer, with slots that were never written",
        "unwritten-slots-attended",
    ),
    _of("K1", "ml-explore/mlx-lm#1736", "a recurrent state loses the mask of what fills rows up", "padding-moves-the-state-on"),
    _of("K1", "Blaizzy/mlx-vlm#1946", "the generator drops the tokenizer's mask", "padding-recorded-nowhere"),
    _of(
        "K2",
        "ml-explore/mlx-lm#93",
        "a learned position is added to prompts only, and counts from 0",
        "learned-position-added-at-prompt-only",
    ),
    _of("K2", "unslothai/unsloth#3699", "one shared cache position for all rows", "decode-position-is-the-shared-length"),
    _of("K2", "huggingface/transformers#36510", "position ids of the user's are not advanced", "given-position-ids-do-not-advance"),
    _of("K2", "vllm-project/vllm#10388", "positions of a chunk are cut on one side only", "positions-of-a-piece-restart"),
    _of("K2", "vllm-project/vllm-metal#144", "restoring a state does not set its offset", "position-restarts-after-load"),
    _of("K2", "ggml-org/llama.cpp#3825", "of several shifts the rotation keeps the last", "second-shift-overwrites-the-first"),
    _of("K2", "huggingface/transformers#43952", "an offset of the call before stays on the model", "offset-of-the-call-before"),
    _of(
        "K2",
        "huggingface/transformers#18104",
        "a mask of the present step alone comes with a past",
        "mask-covers-this-step-only",
        partly=True,
    ),
    _of("K3", "waybarrios/vllm-mlx#380", "a partial hit lowers the length and leaves the arrays", "length-lowered-arrays-kept"),
    _of("K3", "ml-explore/mlx-lm#1097", "an offset is kept by reference and advanced in place", "batched-offset-is-a-reference"),
    _of("K4", "vllm-project/vllm#3264", "the adapter is left out of the key", "adapter-not-in-the-key"),
    _of("K4", "vllm-project/vllm#44701", "salt and adapter stand untagged in one key", "salt-taken-for-an-adapter"),
    _of("K4", "openvinotoolkit/openvino.genai#3722", "a hash is taken for the tokens", "tokens-not-compared"),
    _of("K4", "ROCm/ATOM#1358", "placeholders have one id, and the image is not in the key", "image-not-in-the-key"),
    _of("K4", "waybarrios/vllm-mlx#311", "entries are kept one token short, and nothing computes the gap", "kept-one-token-short"),
    _of(
        "K4",
        "vllm-project/vllm#17305",
        "the count of cached tokens is kept while its blocks are evicted",
        "cached-count-outlives-its-blocks",
    ),
    _of("K4", "InternLM/lmdeploy#4917", "a weight update leaves old entries findable", "weights-updated-entries-kept"),
    _of("K4", "LMCache/LMCache#4991", "a failed store leaves its key findable", "failed-store-stays-findable"),
    _of("K4", "sgl-project/sglang#37836", "states of a packed batch are indexed by request", "states-indexed-on-a-grid-of-their-own"),
    _of("K5", "huggingface/transformers#30312", "crop replaces a static buffer by a shorter one", "crop-loses-the-static-buffer"),
    _of("K5", "ml-explore/mlx-lm#1109", "trimming a recurrent state does nothing", "recurrent-state-keeps-drafts"),
    _of("K5", "ml-explore/mlx-lm#1427", "a full ring can't drop its newest entries", "full-ring-keeps-drafts"),
    _of(
        "K5",
        "huggingface/text-generation-inference#2711",
        "slots of drafts are start + arange, and do not lie in a row",
        "drafts-written-in-a-row",
    ),
    _of("K5", "microsoft/onnxruntime-genai#2140", "a rewind is inherited as nothing", "rewind-inherited-as-nothing"),
    _of(
        "K5",
        "huggingface/transformers#34232",
        "merging split caches takes keys for values",
        "values-loaded-from-keys",
        partly=True,
    ),
    _of("K6", "sgl-project/sglang#35270", "an unfinished block is put into the tree", "published-when-part-full"),
    _of("K6", "sgl-project/sglang-jax#982", "two places free one slot", "release-in-two-places"),
    _of("K6", "vllm-project/vllm#43810", "slot -1 of padded rows is the cache's last", "padded-row-writes-the-last-slot"),
    _of(
        "K6",
        "vllm-project/vllm#57156 vllm-project/vllm#36939",
        "capturing leaves junk in the null block, and nothing times no number is none",
        "null-block-holds-no-number",
    ),
    _of("K6", "vllm-project/vllm#46283", "an abort waits for a completion that never comes", "abort-waits-for-a-lost-peer"),
    _of("K6", "InternLM/lmdeploy#4569", "padded rows keep the last step's offsets", "padded-rows-keep-the-last-steps-offsets"),
    _of("K6", "ollama/ollama#8092", "free blocks do not lie in a row, and defragmenting ends early", "free-blocks-not-in-a-row"),
    _of(
        "K6",
        "vllm-project/vllm#52211",
        "requests that are aborted while they wait reach a store job without blocks",
        why="a crash of one engine's offloading, which its author's own patch did not end: nothing here offloads",
    ),
    _of(
        "K7",
        "Blaizzy/mlx-vlm#1310",
        "a quantised batch is masked by an offset that is negative for padded rows",
        why="its cause is stated in part, and no quantising double has a mask of its own",
        partly=True,
    ),
    _of("K8", "huggingface/transformers#37574", "the window rolls one step early", "window-rolls-a-step-early"),
    _of("K8", "huggingface/transformers#38156", "the cache's length is that of a window layer", "length-of-a-window-layer-for-all"),
    _of("K8", "vllm-project/vllm#51756", "full layers get the window of their group", "full-layers-get-the-groups-window"),
    _of(
        "K8",
        "Blaizzy/mlx-vlm#1715 ml-explore/mlx-lm#1494",
        "a ring is cut by its logical length",
        "ring-cut-by-logical-length",
    ),
    _of("K8", "ollama/ollama#14912", "a ring's state is used beyond its physical size", "ring-restored-beyond-its-size"),
    _of(
        "K8",
        "huggingface/transformers#33691 huggingface/transformers#35350",
        "cached keys are turned again, new ones are not shifted",
        "sinks-and-new-keys-apart",
    ),
    _of("K8", "ml-explore/mlx-swift-lm#424", "rolling a full ring back does nothing", "full-ring-keeps-drafts"),
    _of("K9", "huggingface/transformers#30536", "concatenating copies while the old cache lives", why=_NO_COST_RULE),
    _of("K9", "huggingface/transformers#32227", "a mask that grows makes every step recompile", why=_NO_COST_RULE),
    _of("K9", "huggingface/transformers#47731", "the last cache stays an attribute of the model", "last-cache-kept-on-the-model"),
    _of("K9", "ggml-org/llama.cpp#21831 ml-explore/mlx-lm#1437", "one layer that can't be trimmed voids all reuse", why=_NO_COST_RULE),
    _of(
        "K9",
        "ggml-org/llama.cpp#11970",
        "generated ids differ from those of the text sent back",
        why="a matter of text; doubles are driven by token ids",
    ),
    _of("K9", "vllm-project/vllm#54607", "the shared prefix is shorter than a block", why="no fault: the block's size is documented"),
    _of("K10", "huggingface/transformers#47597", "a mask does not cover cache and input together", "mask-covers-this-step-only"),
    _of(
        "K11",
        "inference-sim/inference-sim#373 inference-sim/inference-sim#529",
        "a request larger than the cache is not refused",
        "admission-takes-everything",
    ),
    _of("K11", "ggml-org/llama.cpp#23652", "each slot is promised the whole pool", "one-overflow-fails-all"),
    _of(
        "K11",
        "vllm-project/vllm#16016 vllm-project/vllm#17045 vllm-project/vllm#39082",
        "tenants share blocks, and time tells",
        "foreign-hits-not-reported",
    ),
    _of("K11", "llm-d/llm-d-router#1389", "the salt is not folded into the key", "salt-not-in-the-key"),
    _of(
        "K11",
        "vllm-project/vllm#45388",
        "all blocks are held, and everybody waits",
        "nobody-gives-way",
        partly=True,
    ),
)
