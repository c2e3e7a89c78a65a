"""Write tiny models that llama.cpp's own server loads: random weights, a real engine around them.

Four kinds, all from the same seed: ``plain``; ``draft`` (the same weights with a little noise, so that a part of its guesses is
accepted); ``eos`` (ends its answers by itself, sooner or later); ``think`` (its chat template opens a reasoning block).

The vocabulary has 1,024 two-syllable words, each a token of its own, and single characters for all other text. Every piece of
more than one character begins with the word mark, so pieces grow from the left only and a known word always ends as one token.
Only whole words have weights in the output layer: at temperature 0 an answer is one plain ASCII word a token.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

INSTALL = "this test needs a real server: pip install xllamacpp gguf"

MARK = "\u2581"  # the word mark of SentencePiece
SYLLABLES = [c + v for c in "kstmprld" for v in "aeio"]  # 8 consonants x 4 vowels = 32
WORDS = [first + second for first in SYLLABLES for second in SYLLABLES]  # 32 x 32 = 1024
SINGLE = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;!?<>|/_-'\"()[]{}#\n"
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # token types of the file format

ANSWER_ONLY = "{% for m in messages %} {{ m['content'] }}{% endfor %}"
THINKING = (
    "{% for m in messages %}{{ m['role'] }}: "
    "{% if m['role'] == 'assistant' and m['reasoning_content'] %}<think>\n{{ m['reasoning_content'] }}\n</think>\n{% endif %}"
    "{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant: <think>\n{% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """What a model is made of; the defaults give 9 MB and about half a millisecond a token."""

    layers: int = 4
    dim: int = 256
    heads: int = 4
    feed_forward: int = 704
    context: int = 32_768
    seed: int = 3
    noise: float = 0.0  # share of fresh noise in every weight: a draft model
    eos: float = 0.0  # size of the end-of-text row against the word rows: 0 never ends
    attention: float = 1.0  # 0: the next word depends on the last one only, so answers fall into a loop
    think: bool = False


KINDS = {
    "plain": Shape(),
    "draft": Shape(noise=0.02),
    "eos": Shape(eos=1.3),
    "think": Shape(think=True),
    "loop": Shape(attention=0.0),
    "big": Shape(layers=8),  # about twice as slow at every context length
    "deep": Shape(layers=8, feed_forward=64),  # no more weights than plain, twice the attention: slower where the context is long
}


def vocabulary() -> tuple[list[bytes], list[float], list[int], int]:
    """Return tokens, scores, types, and the id of the first whole word (the words are consecutive)."""
    tokens = [b"<unk>", b"<s>", b"</s>"] + [f"<0x{b:02X}>".encode() for b in range(256)]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    scores = [0.0] * len(tokens)
    stems = dict.fromkeys(w[:n] for w in WORDS for n in (1, 2, 3))  # the way to each word, a letter at a time
    for piece in [MARK, *SINGLE]:
        tokens.append(piece.encode())
        scores.append(-900.0)
    for stem in stems:
        tokens.append((MARK + stem).encode())
        scores.append(-90.0 + len(stem))
    first = len(tokens)
    for word in WORDS:
        tokens.append((MARK + word).encode())
        scores.append(-2.0)
    types += [NORMAL] * (len(tokens) - len(types))
    while len(tokens) % 32:
        tokens.append(f"<|unused{len(tokens)}|>".encode())
        scores.append(0.0)
        types.append(CONTROL)
    return tokens, scores, types, first


def write_model(path: Path, shape: Shape = Shape()) -> Path:
    """Write one model; the same shape gives the same bytes."""
    import gguf

    tokens, scores, types, first = vocabulary()
    out = gguf.GGUFWriter(str(path), "llama")
    out.add_name("tiny random words")
    out.add_context_length(shape.context)
    out.add_embedding_length(shape.dim)
    out.add_block_count(shape.layers)
    out.add_feed_forward_length(shape.feed_forward)
    out.add_head_count(shape.heads)
    out.add_head_count_kv(shape.heads)
    out.add_rope_dimension_count(shape.dim // shape.heads)
    out.add_rope_freq_base(10_000.0)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_vocab_size(len(tokens))
    out.add_file_type(1)  # half precision
    out.add_tokenizer_model("llama")
    out.add_tokenizer_pre("default")
    out.add_token_list(tokens)
    out.add_token_scores(scores)
    out.add_token_types(types)
    out.add_unk_token_id(0)
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_add_bos_token(False)
    out.add_add_eos_token(False)
    out.add_add_space_prefix(False)
    out.add_chat_template(THINKING if shape.think else ANSWER_ONLY)

    weights = np.random.default_rng(shape.seed)
    fresh = np.random.default_rng(shape.seed + 1000)

    def matrix(rows: int, columns: int, spread: float) -> np.ndarray:
        made = weights.standard_normal((rows, columns), dtype=np.float32)
        if shape.noise:
            made += shape.noise * fresh.standard_normal((rows, columns), dtype=np.float32)
        return made * np.float32(spread)

    d, ff = shape.dim, shape.feed_forward
    narrow = d**-0.5
    tensors: dict[str, np.ndarray] = {"token_embd.weight": matrix(len(tokens), d, 1.0)}
    for n in range(shape.layers):
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{n}.{name}.weight"] = np.ones(d, np.float32)
        for name in ("attn_q", "attn_k", "attn_v"):
            tensors[f"blk.{n}.{name}.weight"] = matrix(d, d, narrow)
        tensors[f"blk.{n}.attn_output.weight"] = matrix(d, d, narrow * shape.attention)
        tensors[f"blk.{n}.ffn_gate.weight"] = matrix(ff, d, narrow)
        tensors[f"blk.{n}.ffn_up.weight"] = matrix(ff, d, narrow)
        tensors[f"blk.{n}.ffn_down.weight"] = matrix(d, ff, ff**-0.5)
    tensors["output_norm.weight"] = np.ones(d, np.float32)
    head = matrix(len(tokens), d, narrow)
    head[:first] = 0
    head[first + len(WORDS) :] = 0
    head[2] = weights.standard_normal(d, dtype=np.float32) * np.float32(narrow * shape.eos)
    tensors["output.weight"] = head
    for name, tensor in tensors.items():
        out.add_tensor(name, tensor if tensor.ndim == 1 else tensor.astype(np.float16))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def write_kind(folder: Path, kind: str, **changes: object) -> Path:
    """Write the model of that kind into a folder, unless it is there already."""
    path = folder / f"{kind}.gguf"
    return path if path.exists() else write_model(path, replace(KINDS[kind], **changes))  # type: ignore[arg-type]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("folder", type=Path)
    chosen = parser.parse_args()
    print(write_kind(chosen.folder, chosen.kind))
