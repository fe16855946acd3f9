"""Clean text from a package's files: Python, reStructuredText, Markdown, HTML. One reader per format.

A reader gets a path and bytes and gives the text, or "" when the file is of another kind, generated, or not UTF-8.
Licence comments at the top of code are dropped here; NOTICE keeps the licences of all sources.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from html.parser import HTMLParser

from fastverify.training.corpus.sources import Reader, Source

MIN_TEXT_BYTES = 200
MAX_CODE_BYTES = 300_000
MAX_LINE_CHARACTERS = 600
_SKIPPED_FOLDERS = re.compile(
    r"(^|/)(tests?|testing|_?vendor(ed)?|extern(al)?s?|locale|idlelib|lib2to3|site-packages|ensurepip|"
    r"_generated|typeshed|pydoc_data|turtledemo|dist-info|config-[^/]*)(/|$)"
)
_SKIPPED_FILES = re.compile(r"(^|/)(test_[^/]*|[^/]*_test|conftest|_distutils_hack|changelog|release-[^/]*)(\.|$)")


def read_text(source: Source, path: str, content: bytes) -> str:
    """The clean text of one file of `source`, "" if it is not wanted."""
    if not path.removeprefix("./").startswith(source.folder) or _is_skipped(path):
        return ""
    if path.endswith(".gz"):
        content, path = gzip.decompress(content), path.removesuffix(".gz")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return ""
    text = _READERS[source.reader](path, text.replace("\r\n", "\n").replace("\x0c", ""))
    text = re.sub(r"\n{4,}", "\n\n\n", re.sub(r"[ \t]+\n", "\n", text)).strip() + "\n"
    return text if len(text) >= MIN_TEXT_BYTES else ""


def _is_skipped(path: str) -> bool:
    lowered = path.lower()
    return bool(_SKIPPED_FOLDERS.search(lowered) or _SKIPPED_FILES.search(lowered))


def python_text(path: str, text: str) -> str:
    """A Python module without its licence comment; generated files and data tables are left out."""
    if not path.endswith(".py") or len(text) > MAX_CODE_BYTES:
        return ""
    if max(map(len, text.splitlines()), default=0) > MAX_LINE_CHARACTERS or _mostly_digits(text):
        return ""
    if re.search(r"(auto(matically)?[- ]?|is |was |file )generated (by|from|file)|do not edit", text[:800].lower()):
        return ""
    return strip_licence_comment(text)


def strip_licence_comment(text: str) -> str:
    """Drop the leading comment lines if they speak of a licence or copyright."""
    lines = text.split("\n")
    end = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")), len(lines))
    header = "\n".join(lines[:end]).lower()
    return "\n".join(lines[end:]) if re.search(r"licen[sc]e|copyright|coding[:=]|^#!", header) else text


def _mostly_digits(text: str) -> bool:
    return sum(map(str.isdigit, text)) > 0.2 * len(text)


def rst_text(path: str, text: str) -> str:
    """reStructuredText as written; it is documentation in the form that people write it."""
    return text if path.endswith((".rst.txt", ".rst", "docs.txt")) or re.search(r"docs/.*\.txt$", path) else ""


def markdown_text(path: str, text: str) -> str:
    """Markdown without HTML comments and link definitions."""
    if not path.endswith(".md"):
        return ""
    text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)
    return re.sub(r"^\[[^\]]+\]: .*\n", "", text, flags=re.MULTILINE)


def html_text(path: str, text: str) -> str:
    """The body of an HTML page as paragraphs, without navigation, scripts and styles."""
    if not path.endswith(".html"):
        return ""
    page = _Page()
    page.feed(text)
    return page.text()


class _Page(HTMLParser):
    BLOCKS = frozenset(
        ("p", "div", "li", "dt", "dd", "h1", "h2", "h3", "h4", "h5", "tr", "table", "ul", "ol", "dl", "pre", "br")
    )
    HIDDEN = frozenset(("script", "style", "head", "svg", "title", "button", "form"))
    NAVIGATION = re.compile(r"navheader|navfooter|nosearch|toc|menu|indexterm")

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._parts: list[str] = []
        self._hidden: list[str] = []  # open tags since the outermost hidden one
        self._pre = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        classes = dict(attrs).get("class") or ""
        navigates = tag == "div" and self.NAVIGATION.search(classes)
        if tag in self.HIDDEN or navigates or (self._hidden and tag == self._hidden[0]):
            self._hidden.append(tag)
        elif tag in self.BLOCKS and not self._hidden:
            self._parts.append("\n- " if tag == "li" else "\n")
            self._pre += tag == "pre"
        elif tag in ("td", "th") and not self._hidden:
            self._parts.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if self._hidden:
            if tag == self._hidden[-1]:
                self._hidden.pop()
        elif tag in self.BLOCKS:
            self._parts.append("\n")
            self._pre -= tag == "pre" and self._pre > 0

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._parts.append(data if self._pre else re.sub(r"\s+", " ", data))

    def text(self) -> str:
        """Collected text with single spaces and at most one empty line between paragraphs."""
        text = re.sub(r"\n[ \t]*\n\s*\n+", "\n\n", "".join(self._parts).replace("\xa0", " "))
        return re.sub(r"(?m)^ (?=\S)", "", re.sub(r"- \n+", "- ", text))


_READERS: dict[Reader, Callable[[str, str], str]] = {
    "python": python_text,
    "rst": rst_text,
    "markdown": markdown_text,
    "html": html_text,
}
