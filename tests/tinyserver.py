"""Run llama.cpp's own HTTP server (inside the xllamacpp wheel) on a tiny model, on 127.0.0.1, in a child process.

``with TinyServer(model) as server: server.url`` waits until it listens and stops it at the end, by its process id. As a program
it is that child: ``tinyserver.py MODEL [options]`` prints ``LISTENING <address>`` and serves until it is told to stop.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path


class TinyServer:
    """A server child; options are those of this file's command line, underscores for dashes."""

    def __init__(self, model: Path, *, log: Path | None = None, nice: int | None = None, cpu: int | None = None, **options: object) -> None:
        self.log_path = log
        arguments = [sys.executable, str(Path(__file__).resolve()), str(model)]
        for name, value in options.items():
            flag = "--" + name.replace("_", "-")
            arguments += [flag] if value is True else [flag, str(value)]
        sink = log.open("wb") if log else subprocess.DEVNULL
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=sink, text=True)
        if log:
            sink.close()  # type: ignore[union-attr]
        if cpu is not None:
            os.sched_setaffinity(self.process.pid, {cpu})
        if nice is not None:
            os.setpriority(os.PRIO_PROCESS, self.process.pid, nice)
        assert self.process.stdout is not None
        said = self.process.stdout.readline().split()
        if len(said) != 2 or said[0] != "LISTENING":
            self.stop()
            raise RuntimeError("the tiny server did not start; it needs: pip install xllamacpp gguf")
        self.url = said[1]

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self.process.pid

    def stop(self) -> None:
        """Stop the child."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> TinyServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def serve() -> None:
    """Be the child."""
    import xllamacpp as x

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--context", type=int, default=16_384)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--draft")
    parser.add_argument("--draft-tokens", type=int, default=8)
    parser.add_argument("--api-key")
    parser.add_argument("--verbosity", type=int, default=3)
    parser.add_argument("--no-flash", action="store_true", help="plain attention: slower at long contexts")
    parser.add_argument("--cache-type", help="type of the KV cache, such as F32: slower at long contexts only")
    parser.add_argument("--no-prefix-cache", action="store_true")
    chosen = parser.parse_args()

    params = x.CommonParams()
    params.model.path = chosen.model
    params.model_alias = {"tiny"}
    params.hostnames = ["127.0.0.1"] if not isinstance(params.hostnames, str) else "127.0.0.1"
    params.port = 0
    params.n_ctx = chosen.context
    params.n_parallel = chosen.slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.endpoint_metrics = params.endpoint_slots = True
    params.verbosity = chosen.verbosity
    params.cache_ram_mib = 64
    if chosen.no_prefix_cache:
        params.cache_prompt = False
    if chosen.no_flash:
        params.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    if chosen.cache_type:
        params.cache_type_k = params.cache_type_v = getattr(x.ggml_type, "GGML_TYPE_" + chosen.cache_type)
    if chosen.api_key:
        params.api_keys = [chosen.api_key]
    if chosen.draft:
        params.speculative.draft.mparams.path = chosen.draft
        params.speculative.draft.n_max = chosen.draft_tokens
        params.speculative.draft.cpuparams.n_threads = params.speculative.draft.cpuparams_batch.n_threads = 1
        params.speculative.types = [x.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    server = x.Server(params)
    print("LISTENING", server.listening_address, flush=True)
    parent, stop = os.getppid(), threading.Event()
    for which in (signal.SIGTERM, signal.SIGINT):
        signal.signal(which, lambda *_: stop.set())
    while not stop.wait(0.2):
        if os.getppid() != parent:  # whoever started it is gone
            break
    del server


if __name__ == "__main__":
    serve()
