"""A decoding loop over a batch, as one writes it around transformers. It has a fault; `kvpact doctor my_loop:step` says which."""

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

PAD = 0

# Random weights, large enough that attention is far from uniform, stand for `from_pretrained`.
torch.manual_seed(0)
torch.set_num_threads(1)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.35,
    )
).eval()


def left_padded(token_ids):
    """Rows of equal length, and the mask that says which tokens are real."""
    width = max(len(row) for row in token_ids)
    ids = torch.full((len(token_ids), width), PAD)
    mask = torch.zeros_like(ids)
    for place, row in enumerate(token_ids):
        ids[place, width - len(row) :] = torch.tensor(row)
        mask[place, width - len(row) :] = 1
    return ids, mask


@torch.inference_mode()
def step(token_ids, state):
    """The next tokens of each row -> the logits after them, and what the next step needs."""
    if state is None:
        ids, mask = left_padded(token_ids)
        cache = DynamicCache()
        out = model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True)
    else:
        cache = state
        out = model(input_ids=torch.tensor(token_ids), past_key_values=cache, use_cache=True)
    return out.logits[:, -1], cache
