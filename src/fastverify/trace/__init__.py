"""Profiler files read, cut into passes and costed. Needs no torch.

Start with `fastverify.trace.reader.read_trace`; the definitions of every number are in docs/traces.md.
"""
