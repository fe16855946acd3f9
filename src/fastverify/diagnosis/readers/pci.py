"""`lspci -vvv` (ACS control bits, link speed and width of GPUs) and the kernel command line (IOMMU).

A bridge whose ACS control redirects requests or completions sends peer-to-peer traffic up to the root complex. Without
root, lspci hides these bits. A kernel command line without an IOMMU word tells nothing: defaults differ by kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fastverify.diagnosis.readers.document import Document
from fastverify.diagnosis.readers.reading import Reading, ReadingBuilder

LSPCI_KIND, CMDLINE_KIND = "lspci", "kernel command line"
LSPCI_MARKERS = ("ACSCtl:", "LnkSta:", "LnkCap:")
GENERATIONS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}
# As the kernel logs what its command line and its defaults came to.
_DOMAIN = re.compile(r"iommu: Default domain type: (Passthrough|Translated)")
_DOMAIN_MODES = {"Passthrough": "passthrough", "Translated": "translated"}
_DEVICE = re.compile(r"\s{0,3}(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] (.{0,200})")
_LINK = re.compile(r"Speed ([\d.]{1,4})GT/s[^,]{0,20}, Width x(\d{1,2})")


def read_lspci(document: Document) -> Reading | None:
    """ACS and links of a listing; a listing cut to its ACSCtl lines counts them."""
    if not any(marker in document.text for marker in LSPCI_MARKERS):
        return None
    builder = ReadingBuilder(LSPCI_KIND, document.source)
    _add_acs(builder, document)
    _add_links(builder, document)
    if "access denied" in document.text and "ACSCtl:" not in document.text:
        builder.notes.append(f"{document.source}: lspci ran without root, so it could not read ACS. Use `sudo lspci`.")
    return builder.build()


def read_kernel_command_line(document: Document) -> Reading | None:
    """How the IOMMU was asked for."""
    builder = ReadingBuilder(CMDLINE_KIND, document.source)
    for line, text in document.having("iommu"):
        found = _DOMAIN.search(text)
        mode = _DOMAIN_MODES[found[1]] if found else None
        if mode is None and _is_command_line(text):
            mode = iommu_mode(text.replace('"', " ").split())
        builder.add("hardware.iommu", mode, line, once=True)
    return builder.build() if builder.evidence else None


def iommu_mode(words: list[str]) -> str | None:
    """off, passthrough or translated; None where the words do not decide it."""
    if any(word in ("iommu=off", "amd_iommu=off", "intel_iommu=off") for word in words):
        return "off"
    if "iommu=pt" in words or "iommu.passthrough=1" in words:
        return "passthrough"
    if any(word.startswith(("intel_iommu=on", "amd_iommu=on", "iommu=force")) for word in words):
        return "translated"
    return None


def _is_command_line(text: str) -> bool:
    """A kernel's own line, rather than a sentence about one."""
    return any(mark in text for mark in ("BOOT_IMAGE=", "root=", "GRUB_CMDLINE", "ommand line:"))


def _add_acs(builder: ReadingBuilder, document: Document) -> None:
    controls = list(document.having("ACSCtl:"))
    if not controls:
        return
    redirecting = [line for line, text in controls if "ReqRedir+" in text or "CmpltRedir+" in text]
    line = redirecting[0] if redirecting else controls[0][0]
    builder.add("hardware.acs_redirect_bridges", len(redirecting), line)


def _add_links(builder: ReadingBuilder, document: Document) -> None:
    """The narrowest link of the NVIDIA devices, or of all where the listing names none."""
    links: dict[str, list[tuple[int, int, int]]] = {"LnkSta:": [], "LnkCap:": []}
    for line, kind, text in _gpu_links(document):
        found = _LINK.search(text)
        if found and found[1] in GENERATIONS:
            links[kind].append((GENERATIONS[found[1]], int(found[2]), line))
    for kind, prefix in (("LnkSta:", "pcie"), ("LnkCap:", "pcie_max")):
        if links[kind]:
            generation, width, line = min(links[kind])
            builder.add(f"hardware.{prefix}_gen", generation, line)
            builder.add(f"hardware.{prefix}_width", width, line)


def _gpu_links(document: Document) -> Iterator[tuple[int, str, str]]:
    is_gpu = False
    for line, text in document.lines:
        if device := _DEVICE.match(text):
            is_gpu = "NVIDIA" in device[1] and ("VGA" in device[1] or "3D controller" in device[1])
        elif is_gpu:
            for kind in ("LnkSta:", "LnkCap:"):
                if kind in text:
                    yield line, kind, text
