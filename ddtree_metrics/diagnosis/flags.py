"""Server flags that a restart changed: what each can reach, and whether the numbers that it can reach moved with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ddtree_metrics.diagnosis.compare import WIDE, Contrast
from ddtree_metrics.diagnosis.result import CANNOT_TELL, REFUTED, SUPPORTED
from ddtree_metrics.diagnosis.study import Study
from ddtree_metrics.metrics.doubt import Estimate
from ddtree_metrics.steps.starts import Start, changed_args

_FINISHED_TEXT = re.compile(
    r"^(reasoning_parser|tool_call_parser|tool_server|chat_template|completion_template|served_model_name|api_key|admin_api_key|file_storage_path|"
    r"enable_cache_report|show_time_cost|bucket_\w+|prompt_tokens_buckets|generation_tokens_buckets|hf_chat_template_name)$"
)
_MEASUREMENT = re.compile(
    r"^(log_|decode_log_interval|enable_metrics|export_metrics|crash_dump|gc_warning|speculative_\w*debug|enable_trace|otlp_|host$|port$|random_seed$)"
)
_DRAFTER = re.compile(r"^speculative_|draft|^json_model_override")
_STEP = re.compile(
    r"attention|cuda_graph|graph|page_size|^tp_|^dp_|^pp_|^ep_|_size$|quant|dtype|kv_cache|mem_fraction|max_total|max_running|chunk|schedul|overlap|compile|"
    r"backend|moe|nccl|all_reduce|^device$|^model_path$|nsa|mla|kernel|context_length|disable_|radix"
)
# a drafter of the same shape: another text of drafts, and only then another time to write them
_DRAFT_TEXT = re.compile(
    r"^speculative_(draft_model\w*|token_map|accept_\w+|draft_attention_window\w*|\w*window\w*)$|^temperature$|^sampling_defaults$"
)


def reach_of(flag: str) -> str:
    """Say which of the two numbers a flag can reach: none, measurement, step, both or unknown."""
    name = _name(flag)
    if _FINISHED_TEXT.match(name):
        return "none"
    if _MEASUREMENT.match(name):
        return "measurement"
    if _DRAFTER.search(name):
        return "both"
    if name in ("model_path", "temperature", "sampling_defaults", "revision", "lora_paths"):
        return "both"
    return "step" if _STEP.search(name) else "unknown"


def first_reach(flag: str) -> tuple[bool, bool]:
    """Say which of step time and tokens per step a flag moves first, of those that it can reach."""
    reach = reach_of(flag)
    if reach in ("none", "measurement"):
        return False, False
    if reach == "step":
        return True, False
    if _DRAFT_TEXT.match(_name(flag)):
        return False, True
    return True, True


def _name(flag: str) -> str:
    return flag.strip().lstrip("-").replace("-", "_").lower()


@dataclass(frozen=True, slots=True)
class Changed:
    """A flag with its values before and after a restart, what it can reach, and what the data say of it.

    Attributes
    ----------
    flag, before, after, reach, status : str
        See ``FlagChange``.
    moved : tuple of str
        Which of the numbers that it can reach moved: ``step time``, ``tokens per step``.
    still, open : tuple of str
        Which did not, and of which it cannot be told.
    rivals : tuple of str
        Other changed flags that can reach the same.
    cut : bool
        Whether a start line was cut, so that flags beyond the cut are not known.
    """

    flag: str
    before: str
    after: str
    reach: str
    status: str
    moved: tuple[str, ...] = ()
    still: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
    cut: bool = False


def moved(found: Estimate, asked: Study, strict: float) -> bool | None:
    """Whether a number moved in either direction: True by the strict interval, False where none that counts is possible, else None."""
    if not found.sure:
        return None
    low, high = found.ends(strict)
    if low > asked.least or high < -asked.least:
        return True
    low, high = found.ends(asked.level)
    return False if max(abs(low), abs(high)) < WIDE * asked.least else None


def judged(before: Start, after: Start, seen: Contrast, asked: Study, strict: float) -> list[Changed]:
    """Judge each flag that differs between two starts, by whether the numbers that it can reach moved.

    A flag that acts on finished text, or on what is logged, is ruled out by what it is. Flags that changed in one restart and can reach
    the same number cannot be told apart by the data.
    """
    listed = changed_args(before, after)
    cut = before.args_cut or after.args_cut
    numbers = (("step time", moved(seen.step_equal, asked, strict)), ("tokens per step", moved(seen.tokens_equal, asked, strict)))
    made = []
    for flag, b, a in listed:
        reach = reach_of(flag)
        first = first_reach(flag)
        can = (reach in ("step", "both", "unknown"), reach in ("both", "unknown"))
        mine = [n for n, ok in zip(numbers, can, strict=True) if ok] if any(can) else list(numbers)
        hit = tuple(name for name, m in mine if m)
        still = tuple(name for name, m in mine if m is False)
        open_ = tuple(name for name, m in mine if m is None)
        if not any(can):
            rivals = tuple(k for k, _, _ in listed if k != flag and any(first_reach(k)))
            made.append(Changed(flag, b, a, reach, REFUTED, hit, still, open_, rivals, cut))
            continue
        rivals = _rivals(flag, first, hit, listed)
        if len(still) == len(mine):
            status = REFUTED
        elif hit and not rivals and not cut:
            status = SUPPORTED
        else:
            status = CANNOT_TELL
        made.append(Changed(flag, b, a, reach, status, hit, still, open_, rivals, cut))
    return made


def _rivals(flag: str, first: tuple[bool, bool], hit: Sequence[str], listed: list[tuple[str, str, str]]) -> tuple[str, ...]:
    """Return the other flags that could have moved what this one is to be blamed for: of one number that it moves first, at best none."""
    found: list[tuple[str, ...]] = []
    for place, name in enumerate(("step time", "tokens per step")):
        if name not in hit:
            continue
        own = first[place]
        others = tuple(k for k, _, _ in listed if k != flag and first_reach(k)[place])
        found.append(others if own or others else ())
    return min(found, key=len, default=tuple(k for k, _, _ in listed if k != flag and any(first_reach(k))))
