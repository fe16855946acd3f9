"""Takes out of a text what a public report should not show: hosts, users, paths, addresses, tokens, serial numbers.

It errs on the side of removing. What decides a diagnosis (versions, sizes, flags, bus ids, library names) stays: of a
path the part from `site-packages` on, or its last name.
"""

from __future__ import annotations

import getpass
import re
import socket
from functools import cache

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b(?:hf_|sk-|ghp_|gho_|glpat-|xox[abp]-|AKIA|nvapi-)[\w-]{8,200}"), "<token>"),
    (re.compile(r"\b(?i:bearer|api[-_]?key|token|password|secret)([ =:]{1,3})[^\s'\"]{4,400}"), r"<secret>"),
    (re.compile(r"\b([a-z]{2,10}://)[^\s/'\"]{1,300}"), r"\1<host>"),
    (re.compile(r"\b(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{20,40}"), "<gpu uuid>"),
    (re.compile(r"\b(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}\b"), "<mac>"),
    (re.compile(r"(?<![\d.])(?!127\.0\.0\.1|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}(?![\d.])"), "<address>"),
    (re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{1,100}"), "<mail>"),
)
_PATH = re.compile(r"(?<![\w.>:])~?/[\w.+@~/-]{2,}")
_SYSTEM = ("/dev/", "/proc/", "/sys/", "/etc/", "/usr/", "/lib", "/bin/", "/sbin/")


def redact(text: str) -> str:
    """The text without private parts."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = _PATH.sub(lambda found: _short_path(found[0]), text)
    for word, replacement in _own_names():
        text = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", replacement, text)
    return text


def _short_path(path: str) -> str:
    if path.startswith(_SYSTEM):
        return path
    _, found, rest = path.partition("site-packages")
    return f"<path>/{found}{rest}" if found else f"<path>/{path.rstrip('/').rpartition('/')[2]}"


@cache
def _own_names() -> tuple[tuple[str, str], ...]:
    """This host's and this user's names; names that any host has would only blur the text."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = ""
    names = ((socket.gethostname(), "<host>"), (user, "<user>"))
    return tuple((name, shown) for name, shown in names if len(name) > 2 and name not in ("root", "localhost"))
