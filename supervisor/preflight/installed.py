"""What is installed in the job's environment, by its files: nothing of it is imported, no interpreter is started."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LARGEST = 1 << 20
_CUDA = re.compile(r"""^cuda\s*(?::[^=\n]*)?=\s*['"]([\d.]+)['"]""", re.M)
_VERSION = re.compile(r"""^__version__\s*(?::[^=\n]*)?=\s*['"]([^'"]+)['"]""", re.M)
_LOCKED = re.compile(r'^name = "(transformers|vllm)"\nversion = "([^"]+)"', re.M)
# Lines of code in .pth files that bring no module from elsewhere, or only those that a finder's text names.
_KNOWN_HOOK = re.compile(
    r"import (_virtualenv|__editable__|os; var = 'SETUPTOOLS|sys, types, os;|coverage|a1_coverage)"
)


@dataclass(frozen=True)
class Packages:
    """Where the job's interpreter looks for modules.

    ``whole`` False: it looks in further places that are not known from here, so what is not found may still be there.
    """

    folders: Sequence[Path] = ()
    finders: str = ""
    """Text of the finder modules that some editable installs leave."""
    whole: bool = False

    def has(self, module: str) -> bool:
        """Is the top-level or dotted ``module`` there?"""
        if not re.fullmatch(r"\w+(\.\w+)*", module):
            return False  # nothing of such a name can be imported
        relative = Path(*module.split("."))
        name = module.partition(".")[0]
        return any(_is_module(folder, relative) for folder in self.folders) or bool(
            re.search(rf"""['"]{re.escape(name)}['"]\s*:""", self.finders)
        )

    def read(self, name: str) -> str:
        """Text of the first file of this relative name, "" where there is none."""
        return first_text(self.folders, name)

    def folder_of(self, module: str) -> Path | None:
        """The folder of a package."""
        relative = Path(*module.split("."))
        return next((folder / relative for folder in self.folders if (folder / relative).is_dir()), None)

    def versions(self) -> dict[str, str]:
        """Every distribution's version, by the names of the metadata's folders; names in small letters with "_"."""
        found: dict[str, str] = {}
        for path in (path for folder in self.folders for path in folder.glob("*.dist-info")):
            name, _, version = path.name.removesuffix(".dist-info").partition("-")
            found.setdefault(name.replace("-", "_").lower(), version)
        return found


def packages(python: Path, environ: Mapping[str, str] | None = None) -> Packages:
    """The folders in which ``python`` (of a virtual environment, or a system's) finds modules."""
    # A virtual environment's python is a symlink out of it: its folder is the one that counts, not its target.
    prefix = python.absolute().parent.parent
    roots = [root for root in (prefix / "lib", prefix / "lib64", prefix / "local/lib") if root.is_dir()]
    # lib64 is mostly a link to lib
    sites = list(dict.fromkeys(one.resolve() for root in roots for one in sorted(root.glob("python3*/*-packages"))))
    folders, finders, strange = [], [], False
    for place in (environ or {}).get("PYTHONPATH", "").split(":"):
        folders += [Path(place)] if place.startswith("/") else []
    for site in sites:
        folders.append(site)
        for pth in sorted(site.glob("*.pth")):
            text = text_of(pth)
            folders += _folders_of_pth(site, text)
            strange = strange or any(
                line.startswith(("import ", "import\t")) and not _KNOWN_HOOK.match(line) for line in text.splitlines()
            )
        finders += [text_of(path) for path in sorted(site.glob("__editable__*finder.py"))]
    settings = text_of(prefix / "pyvenv.cfg")
    own = bool(settings) and not re.search(r"include-system-site-packages\s*=\s*true", settings, re.I)
    return Packages(tuple(folders), "\n".join(finders), whole=own and bool(sites) and not strange)


def torch(found: Packages) -> tuple[str, str]:
    """Version of torch and the CUDA version that it was built for, "" where either is not told."""
    text = found.read("torch/version.py")
    version, cuda = _VERSION.search(text), _CUDA.search(text)
    return (version[1] if version else ""), (cuda[1] if cuda else "")


def read_locked_versions(folder: Path) -> dict[str, str]:
    """Versions that ``uv sync`` will install into a checkout, of what the checks ask for."""
    return dict(_LOCKED.findall(text_of(folder / "uv.lock", 8 * LARGEST)))


def first_text(folders: Iterable[Path], name: str, most: int = LARGEST) -> str:
    """The start of the first file of this relative name in one of ``folders``, "" where there is none."""
    return next((text for folder in folders if (text := text_of(folder / name, most))), "")


def text_of(path: Path, most: int = LARGEST) -> str:
    """The start of a file, "" where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(most).decode("utf-8", "replace")
    except (OSError, ValueError):  # a name with a NUL in it is none
        return ""


def parse_version(text: str) -> tuple[int, ...]:
    """Leading numbers of a version; empty where there are none, which is below every version."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _folders_of_pth(site: Path, text: str) -> Iterator[Path]:
    """The folders that a .pth file names. Its lines of code are not run."""
    for line in text.splitlines():
        if line.strip() and not line.startswith(("import ", "import\t", "#")) and (site / line.strip()).is_dir():
            yield site / line.strip()


def _is_module(folder: Path, relative: Path) -> bool:
    target = folder / relative
    return target.is_dir() or target.with_name(f"{target.name}.py").is_file() or any(folder.glob(f"{relative}.*.so"))
