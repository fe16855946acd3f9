import pytest

from fastverify import units


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("4096", 4096), ("56KB", 57344), ("56 kb", 57344), ("1MB", 1 << 20), ("16B", 16), ("0.5K", 512)],
)
def test_parse_bytes(text: str, num_bytes: int) -> None:
    assert units.parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "KB", "-4KB", "0", "1.5B", "four", "1e400", "nan"])
def test_parse_bytes_refuses_what_is_not_a_size(text: str) -> None:
    with pytest.raises(ValueError, match="a size is a whole number of bytes"):
        units.parse_bytes(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(512, "512 B"), (57344, "56 KB"), (14336, "14 KB"), (1 << 20, "1 MB"), (1536, "1.5 KB")]
)
def test_format_bytes(num_bytes: int, text: str) -> None:
    assert units.format_bytes(num_bytes) == text


def test_format_ms_keeps_three_figures() -> None:
    assert [units.format_ms(ms) for ms in (12345, 33.33, 0.205, 0.0047)] == ["12.35 s", "33.3 ms", "0.205 ms", "4.7 us"]
