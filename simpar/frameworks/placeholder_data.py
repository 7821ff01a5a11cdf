"""A byte-level tokenizer and some lines of text, for targets that do not start without data."""

import json
from collections.abc import Iterator

TOKENIZER, TEXT = "tokenizer", "data"
BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"
LINES, WORDS = 64, 400


def files() -> dict[str, str]:
    """A tokenizer in Hugging Face's format, its config, and texts as JSON lines, each in its folder."""
    alphabet = {letter: number for number, letter in enumerate(_letters())}
    special = [
        {"id": 256 + number, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for number, token in enumerate((BEGIN, END))
    ]  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "vocab": alphabet, "merges": []},
    }  # fmt: skip
    config = {"bos_token": BEGIN, "eos_token": END, "tokenizer_class": "PreTrainedTokenizerFast"}
    line = json.dumps({"text": " ".join(f"word {number}" for number in range(WORDS))})
    return {
        f"{TOKENIZER}/tokenizer.json": json.dumps(tokenizer, ensure_ascii=False) + "\n",
        f"{TOKENIZER}/tokenizer_config.json": json.dumps(config) + "\n",
        f"{TEXT}/text.jsonl": f"{line}\n" * LINES,
    }


def _letters() -> Iterator[str]:
    """The character for every byte in byte-level tokenizers: itself if it is printable, otherwise one from 256 on."""
    printing = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    for byte in range(256):
        yield chr(byte if byte in printing else next(others))
