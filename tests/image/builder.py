"""Builds the Dockerfile without a container engine: each step in a chroot on a clean Debian tree, each layer a folder.

A layer is the upper folder of an overlay, as Docker's overlay2 makes them, so that what a step leaves behind can be
looked at. The steps see this machine's package indexes, by environment and by a file that is mounted for the time of
the step: nothing of that stays in a layer. Needs root, overlayfs, unshare and chroot.
"""

from __future__ import annotations

import fnmatch
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.image.dockerfile import Dockerfile, Instruction, Stage, filled
from tests.isolation import OUTSIDE

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
HOST_FILES = ("/etc/resolv.conf",)  # as Docker does it

# The machine that a step or a container sees; its tree is put together at `root`, in a mount namespace of its own.
MACHINE = r"""
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$upper,workdir=$work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t devpts devpts "$root/dev/pts"
for name in null zero full random urandom tty; do
  touch "$root/dev/$name"
  mount --bind "/dev/$name" "$root/dev/$name"
done
ln -s /proc/self/fd "$root/dev/fd"
"""


class StepFailedError(Exception):
    """A step ended with another code than 0; its text is what it said."""


@dataclass(frozen=True)
class Image:
    """What a stage has become. ``layers``: folders, the lowest first; the first one is the base."""

    layers: tuple[Path, ...]
    env: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    folder: str = "/"
    config: dict[str, str] = field(default_factory=dict)

    @property
    def own_layers(self) -> tuple[Path, ...]:
        return self.layers[1:]


def allowed(context: Path) -> list[Path]:
    """What .dockerignore lets in: first "*", then "!NAME" of the top, then "**/PATTERN" that stay out after all."""
    lines = [line for line in (context / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    if lines[0] != "*" or any("/" in line for line in lines if line.startswith("!")):
        raise ValueError(".dockerignore has a form that these tests do not know")
    let_in = {line[1:] for line in lines if line.startswith("!")}
    out = [line.removeprefix("**/") for line in lines if line.startswith("**/")]
    found = []
    for name in sorted(let_in):
        for path in (context / name, *(context / name).rglob("*")):
            parts = path.relative_to(context).parts
            if not any(fnmatch.fnmatch(part, pattern) for part in parts for pattern in out):
                found.append(path)
    return found


class Builder:
    """``bases`` stand in for the images that FROM names. ``cache``: what the cache mounts share with other builders."""

    def __init__(
        self, folder: Path, dockerfile: Dockerfile, context: Path, bases: Mapping[str, Path], cache: Path
    ) -> None:
        self.folder, self.dockerfile, self.bases, self.cache = folder, dockerfile, bases, cache
        self.arguments: dict[str, str] = {}
        self.built: dict[str, Image] = {}
        self.done: list[tuple[str, int]] = []
        self._count = 0
        self.context = folder / "context"
        for path in allowed(context):
            target = self.context / path.relative_to(context)
            if path.is_dir() and not path.is_symlink():
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target, follow_symlinks=False)

    # ------------------------------------------------------------ machines

    def new(self, name: str) -> Path:
        self._count += 1
        path = self.folder / f"{self._count:02}-{name}"
        path.mkdir(parents=True)
        return path

    def machine(self, image: Image, upper: Path, then: str, *, namespaces: tuple[str, ...] = ()) -> list[str]:
        """The command that puts ``image`` together with ``upper`` on top and goes on with the shell text ``then``."""
        place = self.new("work")
        for name in ("root", "work"):
            (place / name).mkdir()
        values = {
            "lower": ":".join(str(layer) for layer in reversed(image.layers)),
            "upper": str(upper),
            "root": str(place / "root"),
            "work": str(place / "work"),
        }
        text = "\n".join(f"{name}={shlex.quote(value)}" for name, value in values.items())
        options = ["--mount", "--fork", "--pid", "--kill-child=KILL", *namespaces]
        return ["unshare", *options, "bash", "-euc", text + MACHINE + then]

    # ------------------------------------------------------------ stages

    def build(self, name: str, **arguments: str) -> Image:
        """The stage ``name`` with all that it stands on. ``arguments`` are those of ``docker build --build-arg``."""
        self.arguments = arguments
        return self._stage(name)

    def _global(self, text: str) -> str:
        return filled(text, {**self.dockerfile.arguments, **self.arguments})

    def _stage(self, name: str) -> Image:
        if name in self.built:
            return self.built[name]
        stage = self.dockerfile.stage(name)
        if stage is None:
            return Image((self.bases[name],))
        image = self._stage(self._global(stage.base))
        given: dict[str, str] = {}
        for one in stage.instructions:
            image = self._step(stage, one, image, given)
            self.done.append((name, one.line))
        self.built[name] = image
        return image

    def _step(self, stage: Stage, one: Instruction, image: Image, given: dict[str, str]) -> Image:
        values = {**given, **image.env}
        match one.word:
            case "ARG":
                for word in shlex.split(one.rest):
                    name, _, default = word.partition("=")
                    given[name] = self.arguments.get(name, default or self.dockerfile.arguments.get(name, ""))
                return image
            case "RUN":
                return self._run(stage, one, image, given)
            case "COPY":
                return self._copy(stage, one, image, values)
            case "WORKDIR":
                return replace(image, folder=one.rest)
            case "ENV":
                env = dict(word.split("=", 1) for word in shlex.split(filled(one.rest, values)))
                return replace(image, env={**image.env, **env})
            case _:
                return replace(image, config={**image.config, one.word: one.rest})

    def _run(self, stage: Stage, one: Instruction, image: Image, given: Mapping[str, str]) -> Image:
        upper = self.new(f"{stage.name}-run-{one.line}")
        then = [self._hosts()]
        for flag, value in one.flags:
            mount = dict(part.split("=", 1) for part in value.split(","))
            if flag != "mount" or mount["type"] not in {"cache", "bind"}:
                raise ValueError(f"line {one.line}: --{flag}={value} is not known to these tests")
            if mount["type"] == "cache":
                source = self.cache / mount["target"].strip("/").replace("/", "-")
                source.mkdir(parents=True, exist_ok=True)
                (source / "partial").mkdir(exist_ok=True)
            else:
                source = self.context / mount["source"]
            how = "--bind" if mount["type"] == "cache" else "--bind -o ro"
            then += [f'mkdir -p "$root{mount["target"]}"', f'mount {how} {source} "$root{mount["target"]}"']
        environment = {**image.env, **given, **self.hosts_environment(), "HOME": "/root"}
        words = ["env", "-i", *(f"{name}={value}" for name, value in environment.items())]
        inner = f"mkdir -p {shlex.quote(image.folder)}; cd {shlex.quote(image.folder)}; set +e\n{one.rest}"
        then.append(f'exec chroot "$root" {shlex.join([*words, "/bin/sh", "-c", inner])}')
        self._do(self.machine(image, upper, "\n".join(then)), f"RUN in line {one.line}")
        return replace(image, layers=(*image.layers, upper))

    def execute(self, image: Image, command: str) -> None:
        """``command`` in ``image``, with this machine's network; nothing of it stays. Raises StepFailedError."""
        then = f'{self._hosts()}\nexec chroot "$root" '
        words = [f"{name}={value}" for name, value in {**image.env, **self.hosts_environment()}.items()]
        inner = shlex.join(["env", "-i", *words, "/bin/sh", "-c", command])
        self._do(self.machine(image, self.new("tried"), then + inner), command)

    def _copy(self, stage: Stage, one: Instruction, image: Image, values: Mapping[str, str]) -> Image:
        upper = self.new(f"{stage.name}-copy-{one.line}")
        *sources, target = (filled(word, values) for word in one.rest.split())
        unknown = {flag for flag, _ in one.flags} - {"link", "from"}
        if unknown or (len(sources) > 1 and not target.endswith("/")):
            raise ValueError(f"line {one.line}: a COPY that these tests do not know")
        place = target if target.startswith("/") else f"{image.folder.rstrip('/')}/{target.removeprefix('./')}"
        seen = self.new("source")
        came = one.flag("from")
        then = [f"source={shlex.quote(str(self.context))}"]
        if came is not None:
            other = self._stage(came)
            lower = ":".join(str(layer) for layer in reversed(other.layers))
            options = shlex.quote(f"lowerdir={lower}:{seen}")
            then = [f"source={seen}", f'mount -t overlay overlay -o {options} "$source"']
        for source in sources:
            # A folder's content goes into the target, a file goes into it or becomes it.
            then.append(f"""
              if [ -d "$source"/{source} ]; then
                mkdir -p "$root{place}"; cp -a "$source"/{source}/. "$root{place}"
              else
                mkdir -p "$(dirname "$root{place}x")"; cp -a "$source"/{source} "$root{place}"
              fi""")
        if came is None:
            then.append(f'chown -R -h 0:0 "$root{place.rstrip("/")}"')
        self._do(self.machine(image, upper, "\n".join(then)), f"COPY in line {one.line}")
        return replace(image, layers=(*image.layers, upper))

    def _do(self, command: list[str], what: str) -> None:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        if done.returncode:
            said = done.stdout.decode(errors="replace")[-4000:]
            raise StepFailedError(f"{what} ended with {done.returncode}: {said}")

    # ------------------------------------------------------------ this machine's indexes

    def hosts_environment(self) -> dict[str, str]:
        """What the tools need to reach their indexes from here; an engine would get it from its own configuration."""
        told = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"], env=OUTSIDE, capture_output=True, text=True, check=False
        )
        pairs = re.findall(r"(?m)^(?:global|:env:)\.([a-z-]+)='(.*)'$", told.stdout)
        # A list of caps or an index in a folder of this machine is not seen from inside, and no engine would show it.
        values = {
            name: " ".join(
                word
                for word in value.replace("\\n", " ").split()
                if not Path(word.removeprefix("file://")).is_absolute()
            )
            for name, value in pairs
        }
        found = {f"PIP_{name.replace('-', '_').upper()}": value for name, value in values.items() if value}
        found |= {"UV_DEFAULT_INDEX": found["PIP_INDEX_URL"]} if "PIP_INDEX_URL" in found else {}
        found |= {name: value for name, value in OUTSIDE.items() if name.lower().endswith("_proxy")}
        if CERTIFICATES.exists():
            names = ("PIP_CERT", "SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")
            found |= dict.fromkeys(names, "/dev/hosts-certificates")
        return found

    def _hosts(self) -> str:
        lines = [f'[ ! -e "$root{path}" ] || mount --bind -o ro {path} "$root{path}"' for path in HOST_FILES]
        if CERTIFICATES.exists():
            lines.append('touch "$root/dev/hosts-certificates"')
            lines.append(f'mount --bind {CERTIFICATES} "$root/dev/hosts-certificates"')
        return "\n".join(lines)
