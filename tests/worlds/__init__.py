"""Simulated servers with known truth, independent of the tool that reads their logs.

`make(name, seed)` gives a `World`: one log file, for most worlds the rows of finished requests beside it, and a `Truth`. The log
is a journal's export text (`server.export`) or a plain file (`server.log`); the local time of the server is UTC. The same seed
gives the same bytes. Across seeds sizes, slopes and times vary, and so do the lines that a log has beside those of the steps.

How it is made: `engine` simulates starts of a server, `lines` says what it writes, `render` puts that into files, `truth` works
out what is true without the noise, and `oneruns`, `restarts` and `breaks` hold the scenarios, in terms of `build`.
"""

from tests.worlds.scenarios import SCENARIOS, make
from tests.worlds.truth import Truth, World

__all__ = ["SCENARIOS", "Truth", "World", "make"]
