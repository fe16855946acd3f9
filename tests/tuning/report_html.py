"""Reads a report page the way a strict browser would, for tests that run where no browser is installed."""

from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link", "input", "hr", "col", "source"}
# Elements and attributes through which a page can load something.
LOADING = {"src", "href", "srcset", "data", "poster", "action", "formaction", "xlink:href", "background", "ping"}


class Page(HTMLParser):
    """Collects ids, text, loaded addresses and nesting errors of one page."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.errors: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.scripts = 0
        self.style = ""
        self.words: list[str] = []
        self.tips: list[str] = []
        self.feed(html)
        self.close()
        self.errors += [f"<{tag}> is never closed" for tag in self.open]

    @property
    def text(self) -> str:
        """All that a reader sees, with single spaces."""
        return " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._attributes(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._attributes(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1] != tag:
            self.errors.append(f"</{tag}> closes {self.open[-1:]} at {self.getpos()}")
        else:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        inner = self.open[-1] if self.open else ""
        if inner == "style":
            self.style += data
        elif inner == "title" and len(self.open) > 2 and self.open[-2] != "head":
            self.tips.append(data)
        else:
            self.words.append(data)

    def _attributes(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        names = [name for name, _ in attrs]
        if len(names) != len(set(names)):
            self.errors.append(f"<{tag}> has an attribute twice")
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in LOADING and not (value or "").startswith("#"):
                self.loads.append(f"<{tag} {name}={value}>")
            if name.startswith("on"):
                self.scripts += 1
            if "nan" in (value or "").lower().split() or "inf" in (value or "").lower().split():
                self.errors.append(f"<{tag} {name}={value}> is no number")
