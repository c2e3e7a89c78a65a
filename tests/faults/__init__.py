"""The fault campaign: thousands of damaged, hostile and unlucky inputs, each judged by what its generator knows.

``attempts`` runs the program in a child process of its own; ``lines`` writes logs and knows the rows; the kinds of input stand in
``texts``, ``journals``, ``disks``, ``planted``, ``borders`` and ``servers``; ``campaign`` runs and counts them. ``./run faults`` runs it
whole, a test a few of each.
"""
