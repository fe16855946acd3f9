"""Every package that training text comes from: name, pinned version, licence, domain, and whether it is held out.

Held-out sources are whole packages, so no file of theirs, nor a sibling of it, is ever trained on.
Licences were read from each package's own metadata and copyright file; a source with a share-alike or unclear
licence is not listed. Text of a source is used for training only; none of it is shipped except the short held-out
prompts that DATA.md names.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["wheel", "sdist", "deb", "stdlib"]
Reader = Literal["python", "rst", "markdown", "html", "wordnet"]
Domain = Literal["code", "docs", "dictionary"]

BYTES_PER_MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Source:
    """One package. `max_bytes` caps repetitive ones; `folder` restricts an archive to one of its folders."""

    name: str
    version: str
    licence: str
    kind: Kind = "wheel"
    reader: Reader = "python"
    domain: Domain = "code"
    held_out: bool = False
    max_bytes: int = 15 * BYTES_PER_MEGABYTE
    folder: str = ""

    @property
    def requirement(self) -> str:
        """What the package manager is asked for."""
        return f"{self.name}={self.version}" if self.kind == "deb" else f"{self.name}=={self.version}"


SOURCES = (
    Source("cpython-stdlib", "3.11", "PSF-2.0", kind="stdlib"),
    Source("accelerate", "1.15.0", "Apache-2.0"),
    Source("aiohttp", "3.14.5", "Apache-2.0 AND MIT"),
    Source("bokeh", "3.10.2", "BSD-3-Clause"),
    Source("celery", "5.7.0", "BSD-3-Clause"),
    Source("dask", "2026.8.0", "BSD-3-Clause"),
    Source("diffusers", "0.42.1", "Apache-2.0", max_bytes=4 * BYTES_PER_MEGABYTE),
    Source("distributed", "2026.8.0", "BSD-3-Clause"),
    Source("django", "6.1.3", "BSD-3-Clause"),
    Source("fastapi", "0.165.0", "MIT"),
    Source("flask", "3.1.3", "BSD-3-Clause"),
    Source("flax", "0.12.12", "Apache-2.0"),
    Source("ipython", "9.18.1", "BSD-3-Clause"),
    Source("jax", "0.12.0.1", "Apache-2.0"),
    Source("jinja2", "3.1.6", "BSD-3-Clause"),
    Source("keras", "3.15.1", "Apache-2.0"),
    Source("lightning", "2.6.6", "Apache-2.0"),
    Source("matplotlib", "3.11.2", "PSF-2.0-like (matplotlib)"),
    Source("mypy", "2.4.1", "MIT"),
    Source("nltk", "3.10.4", "Apache-2.0"),
    Source("numpy", "2.5.5", "BSD-3-Clause"),
    Source("pandas", "3.1.1", "BSD-3-Clause"),
    Source("peft", "0.21.2", "Apache-2.0"),
    Source("pydantic", "2.14.4", "MIT"),
    Source("pytest", "9.2.0", "MIT"),
    Source("rich", "15.0.0", "MIT"),
    Source("scikit-image", "0.26.0", "BSD-3-Clause"),
    Source("scikit-learn", "1.9.1", "BSD-3-Clause"),
    Source("scipy", "1.18.1", "BSD-3-Clause"),
    Source("scrapy", "2.19.0", "BSD-3-Clause"),
    Source("setuptools", "84.2.1", "MIT"),
    Source("sphinx", "9.1.1", "BSD-2-Clause"),
    Source("sqlalchemy", "2.1.9", "MIT"),
    Source("starlette", "1.10.0", "BSD-3-Clause"),
    Source("statsmodels", "0.15.0", "BSD-3-Clause"),
    Source("sympy", "1.14.0", "BSD-3-Clause", max_bytes=9 * BYTES_PER_MEGABYTE),
    Source("torch-geometric", "2.8.1", "MIT"),
    Source("torchvision", "0.29.1", "BSD-3-Clause"),
    Source("tornado", "6.6.1", "Apache-2.0"),
    Source("transformers", "5.24.0", "Apache-2.0", max_bytes=10 * BYTES_PER_MEGABYTE),
    Source("trio", "0.35.0", "MIT OR Apache-2.0"),
    Source("twisted", "26.10.0", "MIT"),
    Source("werkzeug", "3.1.9", "BSD-3-Clause"),
    Source("xarray", "2026.9.0", "Apache-2.0"),
    Source("networkx", "3.7", "BSD-3-Clause", held_out=True),
    Source("click", "8.5.1", "BSD-3-Clause", held_out=True),
    Source("httpx", "0.28.1", "BSD-3-Clause", held_out=True),
    Source("python3.11-doc", "3.11.2-6+deb12u8", "PSF-2.0", kind="deb", reader="rst", domain="docs"),
    Source("postgresql-doc-15", "15.18-0+deb12u1", "PostgreSQL", kind="deb", reader="html", domain="docs"),
    Source("nodejs-doc", "18.20.4+dfsg-1~deb12u2", "MIT", kind="deb", reader="markdown", domain="docs"),
    Source("django", "5.2.19", "BSD-3-Clause", kind="sdist", reader="rst", domain="docs", folder="docs/"),
    Source("sqlalchemy", "2.1.9", "MIT", kind="sdist", reader="rst", domain="docs", folder="doc/build/"),
    Source("sqlite3-doc", "3.40.1-2+deb12u2", "public domain", kind="deb", reader="html", domain="docs", held_out=True),
    Source("wordnet-base", "1:3.0-37", "WordNet 3.0", kind="deb", reader="wordnet", domain="dictionary"),
)
