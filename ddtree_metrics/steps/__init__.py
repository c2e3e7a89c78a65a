"""What a line is beside the lines before it, decided once: what a stream is, what a step time is, how many tokens, which rows count.

Summary, report, plots and diagnosis take their rows from here (``basis``); nothing above decides any of it again.

============== ===============================================================================================
stream_ids     which rows come from the same place: host, boot, unit, process, rank
rank_copies    which lines other ranks have written already
columns        a table of one batch as numbers
frames         a column of any frame as numbers
intervals      the one rule by which the time between two lines is a step time, or why it is none
streams        that rule from batch to batch, while a log is read
step_time      that rule on a frame
tokens         how many tokens a step committed, and by which convention
conventions    what the numbers of a log count
decode_windows ``Decode batch`` lines: windows of steps, each checked
prompts        which requests are repeats of one prompt
starts         which server start, and which service, a row is of
own_requests   what the server asks itself: warm-ups and health checks
basis          the rows that the numbers rest on
============== ===============================================================================================
"""
