"""Writes smollm2_answers.json beside itself: fifty answers of the built-in model at temperature 0.7, each with a seed of its own.

They are taken as they come, whatever a detector thinks of them. Run it again when the built-in model changes.
"""

from __future__ import annotations

import json
from pathlib import Path

from kvpact import LLM, SamplingParams

SUBJECTS = (
    "the sea",
    "bread",
    "the moon",
    "bicycles",
    "photosynthesis",
    "chess",
    "the city of Lisbon",
    "rain",
    "honey bees",
    "prime numbers",
)
TASKS = (
    "Explain {} to a child.",
    "Write a short story about {}.",
    "What should everybody know about {}?",
    "List three facts about {}.",
    "Write an e-mail to a friend about {}.",
)
TEMPERATURE = 0.7
MAX_TOKENS = 80


def main() -> None:
    llm = LLM()
    questions = [task.format(subject) for task in TASKS for subject in SUBJECTS]
    prompts = [llm.chat_prompt([{"role": "user", "content": question}]) for question in questions]
    params = [SamplingParams(temperature=TEMPERATURE, max_tokens=MAX_TOKENS, seed=seed) for seed in range(len(questions))]
    answers = [
        {"question": question, "token_ids": list(output.outputs[0].token_ids), "text": output.outputs[0].text}
        for question, output in zip(questions, llm.generate(prompts, params), strict=True)
    ]
    document = {"temperature": TEMPERATURE, "special_ids": sorted(llm.tokenizer.eos_token_ids), "answers": answers}
    lines = [json.dumps(answer, ensure_ascii=False) for answer in document.pop("answers")]
    head = json.dumps(document)[:-1]
    path = Path(__file__).with_name("smollm2_answers.json")
    path.write_text(f'{head}, "answers": [\n' + ",\n".join(lines) + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
