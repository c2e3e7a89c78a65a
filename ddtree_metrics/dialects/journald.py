"""What journald and systemd say about a unit: lines they dropped, and its starts and ends."""

from __future__ import annotations

from ddtree_metrics.dialects.base import Dialect, Line, Sample
from ddtree_metrics.records import Event

_UNIT = r"[\w@.:\\-]+\.(?:service|scope|socket|slice)"
_WORDS = (("Started ", "restart"), ("Stopped ", "exit"))

JOURNALD = Dialect(
    name="journald",
    about="journald's notices of dropped lines, systemd's of starts and ends",
    lines=(
        Line(
            Event,
            marker="Suppressed ",
            shared=True,
            # The row's own unit is the one that lost lines where the journal says so; elsewhere the text names it.
            pattern=rf"^Suppressed (?P<count>\d{{1,18}}) messages? from (?P<detail>(?:/\S*/)?(?P<unit>{_UNIT})(?: .*)?|\S.*)$",
            const={"kind": "suppressed"},
            samples=(
                Sample(
                    "Suppressed 740 messages from sglang.service",
                    {"kind": "suppressed", "count": 740, "detail": "sglang.service", "unit": "sglang.service"},
                ),
                Sample("Suppressed messages are bad"),
                Sample('he said "Suppressed 740 messages from sglang.service"'),
            ),
        ),
        *(
            Line(
                Event,
                marker=word,
                shared=True,
                pattern=rf"^(?P<detail>{word}{_UNIT}(?: - .*?)?)\.?$",
                const={"kind": kind},
                samples=(
                    Sample(f"{word}sglang.service - SGLang server.", {"kind": kind, "detail": f"{word}sglang.service - SGLang server"}),
                    Sample(f"{word}loading the weights"),
                ),
            )
            for word, kind in _WORDS
        ),
        *(
            Line(
                Event,
                marker=word,
                shared=True,
                pattern=rf"^(?P<detail>{word}[^\s].*?)\.?$",
                const={"kind": kind},
                pid=1,
                samples=(Sample(f"{word}SGLang server."),),
            )
            for word, kind in _WORDS
        ),
        Line(
            Event,
            marker="Main process exited",
            shared=True,
            also=("Failed with result", "Deactivated successfully"),
            pattern=r"^(?P<detail>(?:Main process exited, code=|Failed with result |Deactivated successfully).*?)\.?$",
            const={"kind": "exit"},
            samples=(
                Sample(
                    "sglang.service: Main process exited, code=exited, status=1/FAILURE",
                    {"kind": "exit", "detail": "Main process exited, code=exited, status=1/FAILURE"},
                ),
                Sample("sglang.service: Failed with result 'exit-code'.", {"detail": "Failed with result 'exit-code'"}),
                Sample("the Main process exited, code=exited"),
            ),
        ),
        Line(
            Event,
            marker="Scheduled restart job",
            shared=True,
            pattern=r"^(?P<detail>Scheduled restart job, restart counter is at (?P<count>\d{1,9}))\.?$",
            const={"kind": "restart"},
            samples=(
                Sample(
                    "sglang.service: Scheduled restart job, restart counter is at 3.",
                    {"kind": "restart", "count": 3, "detail": "Scheduled restart job, restart counter is at 3"},
                ),
                Sample("Scheduled restart job"),
            ),
        ),
    ),
)
