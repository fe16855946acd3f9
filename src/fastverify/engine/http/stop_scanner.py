"""Finds stop texts in a growing answer, and holds back text that may be the beginning of one."""

from __future__ import annotations


class StopScanner:
    """Fed with pieces of text; gives what may be shown. After a stop text was found nothing more comes out."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.found = False

    def feed(self, piece: str) -> str:
        """Text that is certainly not part of a stop text; the stop text itself is never given."""
        if self.found:
            return ""
        text = self._held + piece
        ends = [index for stop in self._stops if (index := text.find(stop)) >= 0]
        if ends:
            self.found = True
            self._held = ""
            return text[: min(ends)]
        num_held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def finish(self) -> str:
        """What was held back, once no more text comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Longest end of the text that is a proper beginning of the stop text."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
