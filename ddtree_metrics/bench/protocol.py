"""The measurement itself: which requests are sent, in which order, and when to stop.

For each round and context length: a fresh prompt of exactly that length; a warm-up with the *short* number of tokens on it, so
that all that follows meets the same cache and the same first decode step; then the short and the long request, in an order that
alternates. Rounds run over all context lengths in turn, so that a server that drifts drifts for all of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ddtree_metrics.bench.answers import TimedAnswer
from ddtree_metrics.bench.client import Client
from ddtree_metrics.bench.key_filter import clean_texts
from ddtree_metrics.bench.lengths import Fitted, fit
from ddtree_metrics.bench.prompts import PromptSource
from ddtree_metrics.bench.server import Tokenizer, VerifyCounters, identify, others
from ddtree_metrics.bench.stats import all_rounds, median_interval, one_a_round, summarise
from ddtree_metrics.bench.sweep import Plan, Sweep, client_facts
from ddtree_metrics.errors import BenchError

Progress = Callable[[int, int, str], None]
ENOUGH = 7
"""Kept rounds before a narrow interval may end a point."""
_FATAL = ("auth", "not_found", "connection", "refused_field", "bad_request", "bad_answer")


class _CannotMeasureError(Exception):
    """A context length cannot be measured; the message says why."""


@dataclass(slots=True)
class _State:
    answers: dict[int, list[TimedAnswer]] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    finished: set[int] = field(default_factory=set)
    lost: int = 0
    asks_others: bool = True
    busy_rounds: int = 0


def run_sweep(
    url: str,
    plan: Plan | None = None,
    *,
    prompts: PromptSource | None = None,
    api_key: str | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Measure decode speed against context length.

    Parameters
    ----------
    url : str
        An OpenAI-compatible server.
    plan : Plan, optional
        What to measure.
    prompts : PromptSource, optional
        Where the text comes from; built-in varied prose by default.
    api_key : str, optional
        Sent to the server; stored nowhere.
    progress : callable, optional
        Called with rounds done, rounds in all, and what is done now.

    Returns
    -------
    Sweep
        With ``interrupted`` set if Ctrl-C ended it; what was measured until then is in it.

    Raises
    ------
    BenchError
        If httpcore is missing, or nothing at all can be measured: no answer, a key refused, no token counts.
    """
    plan = plan or Plan()
    prompts = prompts or PromptSource(plan.seed)
    with Client(url, model=plan.model, api_key=api_key, chat=plan.chat, stream=plan.stream, timeout=plan.timeout) as client:
        try:
            made: Sweep = clean_texts(_Runner(client, plan, prompts, progress or (lambda *_: None)).run(), client.clean)
        except BenchError as error:
            raise BenchError(client.clean(str(error))) from None
        return made


class _Runner:
    def __init__(self, client: Client, plan: Plan, prompts: PromptSource, progress: Progress) -> None:
        self.client, self.plan, self.prompts, self.progress = client, plan, prompts, progress
        self.state = _State(answers={ctx: [] for ctx in plan.ctx})
        self.characters = 4.2  # a token; learnt as the sweep goes on
        self.offset = 0  # tokens that the server adds to those of the text
        self.tokenizer: Tokenizer | None = None
        self.counters: VerifyCounters | None = None
        self.rounds_done = 0

    def run(self) -> Sweep:
        """Probe, calibrate, measure."""
        plan, client, state = self.plan, self.client, self.state
        started = time.time()
        served = client.models()
        if client.model is None and served:
            client.model = served[0]
            if len(served) > 1:
                state.notes.append(f"the server names {len(served)} models; measured the first, {served[0]}")
        server = identify(client)
        interrupted = False
        try:
            self.probe(served)
            for ctx in sorted(plan.ctx):
                self.progress(0, plan.repeat * len(plan.ctx), f"finding a prompt of {ctx} tokens")
                self.calibrate(ctx)
            for number in range(plan.repeat):
                self.round(number)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            client.close()
        if state.busy_rounds:
            state.notes.append(f"the server had other requests when {state.busy_rounds} of the rounds began: speeds are those beside them")
        if client.refused:
            state.notes.append(f"the server does not take {', '.join(client.refused)}: answers may end early")
        points = [
            summarise(c, state.answers[c], plan.lengths, concurrency=plan.concurrency, problem=state.problems.get(c)) for c in plan.ctx
        ]
        if interrupted:
            for p in points:
                if p.rounds == 0 and p.ctx_req not in state.problems:
                    p.reason = "interrupted before it was measured"
        return Sweep(
            url=client.shown_url,
            plan=plan,
            model=client.model,
            prompt=self.prompts.description,
            points=points,
            answers=[a for c in plan.ctx for a in state.answers[c]],
            server=server,
            client=client_facts(),
            started=started,
            finished=time.time(),
            interrupted=interrupted,
            notes=state.notes,
            refused=list(client.refused),
        )

    def probe(self, served: list[str]) -> None:
        """Send one short request: does it answer, which fields does it take, does it count, how long are its tokens."""
        text = self.prompts.make("probe", 160)[0][:160]
        answer, _ = self.client.ask_politely(text, self.plan.lengths[0], role="calibrate")
        where = self.client.shown_url
        if answer.failure in _FATAL:
            known = f"; it serves: {', '.join(served[:5])}" if answer.failure == "not_found" and served else ""
            raise BenchError(f"{where} does not answer a request: {answer.message}{known}")
        if answer.failure:
            raise BenchError(f"{where} does not answer a request ({answer.failure}): {answer.message}")
        if answer.completion_tokens is None or answer.prompt_tokens is None:
            hint = "; in a stream it comes only with stream_options, try --no-stream" if self.plan.stream else ""
            raise BenchError(f"{where} reports no token usage, and without it nothing can be measured{hint}")
        self.characters = len(text) / answer.prompt_tokens
        tokenizer = Tokenizer(self.client)
        counted = tokenizer.count(text) if tokenizer.there else None
        if counted is not None:
            self.tokenizer, self.offset = tokenizer, answer.prompt_tokens - counted
        if answer.steps is None and self.plan.concurrency == 1:
            counters = VerifyCounters(self.client)
            self.counters = counters if counters.there else None

    def calibrate(self, ctx: int) -> None:
        """Find out whether this length can be had at all; its request is thrown away."""
        try:
            self.prompt(ctx, None, 0)
        except _CannotMeasureError as why:
            self.state.problems[ctx] = str(why)

    def prompt(self, ctx: int, number: int | None, worker: int) -> Fitted:
        """Make a fresh prompt of exactly ``ctx`` tokens, and leave the server warmed up with it."""
        key = f"{ctx}/{'first' if number is None else number}/{worker}"
        room = self.characters
        for _ in range(3):
            text, repeats = self.prompts.make(key, int(ctx * room * 1.5) + 400)
            made = self.fit_by_tokenizer(text, ctx, number, worker) if self.tokenizer else None
            if made is None:
                made = self.fit_by_requests(text, ctx, number, worker)
            if made.tokens is None or made.exact or made.tokens > ctx or len(made.text) < len(text.rstrip()):
                break
            room *= 2  # the whole text is too short
        assert made is not None
        if repeats:
            self.note(f"the prompt file is shorter than {ctx} tokens and was repeated: speculation looks better than in real use")
        if made.tokens is not None and made.tokens > ctx and made.tokens - ctx > 4:
            raise _CannotMeasureError(f"the shortest prompt this endpoint takes has {made.tokens} tokens")
        if made.tokens:
            self.characters = len(made.text) / max(1, made.tokens)
        return made

    def fit_by_tokenizer(self, text: str, ctx: int, number: int | None, worker: int) -> Fitted | None:
        """Fit with /tokenize, then prove it with the warm-up; ``None`` if the two cannot be brought together."""
        assert self.tokenizer is not None
        tries = 0
        for _ in range(3):
            made = fit(text, ctx - self.offset, self.tokenizer.count, characters_a_token=self.characters)
            tries += made.tries
            if made.tokens is None:
                self.tokenizer = None
                return None
            answer = self.warm(made.text, ctx, number, worker)
            if answer.prompt_tokens is None:
                return Fitted(made.text, None, False, tries)
            if answer.prompt_tokens == ctx or not made.exact:
                return Fitted(made.text, answer.prompt_tokens, answer.prompt_tokens == ctx, tries)
            self.offset += answer.prompt_tokens - ctx
        return None

    def fit_by_requests(self, text: str, ctx: int, number: int | None, worker: int) -> Fitted:
        """Fit by what the answers' usage says; the last request is the warm-up."""
        last = ""
        refusal: str | None = None

        def count(piece: str) -> int | None:
            nonlocal last, refusal
            answer, sent = self.client.ask_politely(piece, self.plan.lengths[0], role="grow", ctx=ctx, round=number, worker=worker)
            self.state.answers[ctx] += sent
            last = piece
            if answer.failure == "too_long":
                refusal = answer.message
                return ctx + max(2, ctx // 50)
            self.check(answer)
            return answer.prompt_tokens if answer.failure is None else None

        made = fit(text, ctx, count, characters_a_token=self.characters, tries=16)
        if made.tokens is None or (refusal and not made.exact):
            raise _CannotMeasureError(refusal or "no answer said how long the prompt was")
        if last != made.text:
            self.warm(made.text, ctx, number, worker)
        return made

    def warm(self, text: str, ctx: int, number: int | None, worker: int) -> TimedAnswer:
        """Ask for the short number of tokens: the state in which all requests of the round meet the server."""
        answer, sent = self.client.ask_politely(text, self.plan.lengths[0], role="warmup", ctx=ctx, round=number, worker=worker)
        self.state.answers[ctx] += sent
        if answer.failure == "too_long":
            raise _CannotMeasureError(f"the server refuses a prompt of {ctx} tokens: {answer.message}")
        self.check(answer)
        if answer.failure:
            raise _CannotMeasureError(f"{answer.failure}: {answer.message}")
        return answer

    def check(self, answer: TimedAnswer) -> None:
        """Give up where the server is gone, or the key no longer taken."""
        gone = ("connection", "timeout", *(("rate_limited", "server_error") if answer.role != "measure" else ()))  # asked again by then
        self.state.lost = self.state.lost + 1 if answer.failure in gone else 0
        if answer.failure == "auth":
            raise BenchError(answer.message or "the server does not take the API key")

    def round(self, number: int) -> None:
        """One round over all context lengths."""
        plan, state = self.plan, self.state
        if state.asks_others:
            running = others(self.client)
            state.asks_others = running is not None
            state.busy_rounds += bool(running)
        order = plan.ctx if number % 2 == 0 else plan.ctx[::-1]
        for ctx in order:
            self.rounds_done += 1
            self.progress(self.rounds_done, plan.repeat * len(plan.ctx), f"{ctx} tokens, round {number + 1} of {plan.repeat}")
            if ctx in state.finished or ctx in state.problems:
                continue
            if state.lost >= 3:
                state.problems[ctx] = "the server stopped answering, or is too busy to"
                continue
            try:
                texts = [self.prompt(ctx, number, worker).text for worker in range(plan.concurrency)]
            except _CannotMeasureError:
                continue  # the failed warm-up counts as a dropped round
            self.measure(ctx, number, texts)
            if plan.precision and self.narrow(ctx):
                state.finished.add(ctx)

    def measure(self, ctx: int, number: int, texts: list[str]) -> None:
        """Send the requests of one round: shortest first or longest first, in turn."""
        plan, state = self.plan, self.state
        if plan.concurrency > 1:
            state.answers[ctx] += self.together(texts, plan.lengths[0], "warmup", ctx, number)
        forward = (number + plan.ctx.index(ctx)) % 2 == 0
        for length in plan.lengths if forward else plan.lengths[::-1]:
            before = self.counters.read() if self.counters else None
            answers = self.together(texts, length, "measure", ctx, number)
            if self.counters:
                self.counters.fill(answers[0], before)
            state.answers[ctx] += answers
            bad = next((a for a in answers if a.failure), None)
            for a in answers:
                self.check(a)
            if bad is not None:  # the round is lost; what the others would show is no pair
                if bad.failure in ("rate_limited", "server_error"):
                    self.client.back_off(bad)
                return

    def together(self, texts: list[str], length: int, role: str, ctx: int, number: int) -> list[TimedAnswer]:
        """Send one request for each text, all at the same moment."""
        if len(texts) == 1:
            return [self.client.ask(texts[0], length, role=role, ctx=ctx, round=number)]
        made: list[TimedAnswer | None] = [None] * len(texts)
        gate = threading.Barrier(len(texts))

        def work(worker: int) -> None:
            gate.wait()
            made[worker] = self.client.ask(texts[worker], length, role=role, ctx=ctx, round=number, worker=worker)

        # daemons, so that Ctrl-C need not wait for a server that hangs
        threads = [threading.Thread(target=work, args=(w,), daemon=True) for w in range(len(texts))]
        for t in threads:
            t.start()
        for t in threads:
            while t.is_alive():
                t.join(0.2)
        return [a for a in made if a is not None]

    def narrow(self, ctx: int) -> bool:
        """Whether the interval of this point is narrow enough to stop."""
        kept = one_a_round([r for r in all_rounds(self.state.answers[ctx], len(self.plan.lengths)) if r.reason is None])
        if len(kept) < ENOUGH:
            return False
        now = median_interval(kept)
        return now.low is not None and now.high is not None and (now.high - now.low) / now.middle < self.plan.precision

    def note(self, text: str) -> None:
        """Note once."""
        if text not in self.state.notes:
            self.state.notes.append(text)
