"""Agent images without a base image to pull: this machine's Python and busybox, packed into one layer.

For the demo and the tests, on machines where the only registry within reach is the one that they started. An image is
38 MB, takes a second to pack, and holds the interpreter, its whole standard library, the shared libraries that `ldd`
names and a shell. It is made for this machine's architecture, and only Linux can make one.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

from hatchway.errors import HatchwayError

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "ppc64le": "ppc64le", "s390x": "s390x"}
"""What the kernel calls a machine -> what an image calls it (GOARCH, as the OCI image spec wants)."""

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NEEDED_MODULES = "json, ssl, http.client, threading, subprocess, ctypes"
# Parts of the standard library that no agent runs, and that make half of its size.
LEFT_OUT = {"test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "__pycache__", "site-packages"}
LEFT_OUT_FILES = re.compile(r"^(_tkinter|_test|_ctypes_test|xxlimited).*\.so$|\.a$")


class ImageError(HatchwayError):
    """An image cannot be made here. Says what is missing."""


def machine_architecture() -> str:
    """This machine's architecture, as images spell it."""
    machine = platform.machine()
    return ARCHITECTURES.get(machine, machine)


@dataclass(frozen=True)
class Image:
    """One layer and the configuration to run it."""

    layer: bytes = field(repr=False)
    """An uncompressed tar of the root directory."""
    entrypoint: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: {"PATH": PATH})
    user: str = ""
    architecture: str = field(default_factory=machine_architecture)

    @cached_property
    def digest(self) -> str:
        """sha256 of the layer, in hex: the same content has the same digest on every run."""
        return hashlib.sha256(self.layer).hexdigest()

    def config(self) -> bytes:
        """The image's configuration, as Docker's image specification 1.2 has it."""
        running = {"Env": [f"{k}={v}" for k, v in self.env.items()], "Entrypoint": list(self.entrypoint) or None}
        return json.dumps(
            {
                "architecture": self.architecture,
                "os": "linux",
                "config": {**running, "User": self.user},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{self.digest}"]},
                "history": [{"created_by": "hatchway"}],
            },
            sort_keys=True,
        ).encode()


class _Layer:
    """A root directory, as a tar that comes out the same for the same content."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._buffer, mode="w")  # noqa: SIM115 - closed by content()
        self._seen: set[str] = set()
        for name, mode in (("tmp", 0o1777), ("root", 0o700), ("etc", 0o755), ("dev", 0o755), ("proc", 0o755)):
            self._directory(name, mode)
        self.text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n")
        self.text("/etc/group", "root:x:0:\nnogroup:x:65534:\n")
        self.text("/etc/nsswitch.conf", "hosts: files dns\n")

    def text(self, path: str, content: str | bytes, mode: int = 0o644) -> None:
        data = content.encode() if isinstance(content, str) else content
        info = self._info(path, mode)
        if info is not None:
            info.size = len(data)
            self._tar.addfile(info, io.BytesIO(data))

    def file(self, source: Path, path: str | None = None) -> None:
        """`source`, at the same path or at `path`; a link is followed, so that nothing dangles."""
        self.text(path or str(source), source.read_bytes(), 0o755 if source.stat().st_mode & 0o111 else 0o644)

    def link(self, path: str, target: str) -> None:
        info = self._info(path, 0o777)
        if info is not None:
            info.type, info.linkname = tarfile.SYMTYPE, target
            self._tar.addfile(info)

    def content(self) -> bytes:
        self._tar.close()
        return self._buffer.getvalue()

    def _info(self, path: str, mode: int) -> tarfile.TarInfo | None:
        name = path.lstrip("/")
        if name in self._seen:
            return None
        self._seen.add(name)
        for parent in reversed(PurePosixPath(name).parents[:-1]):
            self._directory(str(parent), 0o755)
        info = tarfile.TarInfo(name)
        info.mode = mode
        return info

    def _directory(self, name: str, mode: int) -> None:
        if name not in self._seen:
            self._seen.add(name)
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, mode
            self._tar.addfile(info)


def python_image(files: Mapping[str, bytes] | None = None, entrypoint: Iterable[str] = ()) -> Image:
    """An image with Python at /usr/bin/python3, a shell where this machine has a static busybox, and `files`.

    Raises ImageError where no interpreter with the modules that an agent needs can be packed.
    """
    layer = _Layer()
    _add_python(layer)
    busybox = find_busybox()
    if busybox is not None:
        _add_busybox(layer, busybox)
    for path, content in (files or {}).items():
        layer.text(path, content, 0o755)
    return Image(layer.content(), tuple(entrypoint))


def agent_image() -> Image:
    """An image whose entrypoint is the reference agent."""
    agent = Path(__file__).parent.parent / "agent.py"
    where = "/usr/share/hatchway/agent.py"
    return python_image({where: agent.read_bytes()}, ("/usr/bin/python3", where))


def busybox_image() -> Image:
    """A shell and its tools, no Python: 2 MB. Raises ImageError without a static busybox."""
    layer = _Layer()
    _add_busybox(layer, _required_busybox())
    return Image(layer.content())


def bare_image() -> Image:
    """One program, /bin/sleep: neither a shell nor Python. Raises ImageError without a static busybox."""
    layer = _Layer()
    layer.file(_required_busybox(), "/bin/sleep")
    return Image(layer.content())


def find_busybox() -> Path | None:
    """A busybox that needs no library, or None."""
    found = shutil.which("busybox")
    if found is None or "not a dynamic executable" not in _ldd(Path(found)):
        return None
    return Path(found)


def _required_busybox() -> Path:
    busybox = find_busybox()
    if busybox is None:
        raise ImageError("no statically linked busybox on PATH (Debian: apt-get install busybox-static)")
    return busybox


def _add_busybox(layer: _Layer, busybox: Path) -> None:
    layer.file(busybox, "/bin/busybox")
    for applet in subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split():
        layer.link(f"/bin/{applet}", "busybox")


def _add_python(layer: _Layer) -> None:
    interpreter = _interpreter()
    facts = json.loads(
        _ask(
            interpreter,
            "import sys, sysconfig as s, json; print(json.dumps([sys.base_prefix, s.get_path('stdlib'), "
            "s.get_path('platstdlib'), s.get_config_var('DESTSHARED'), s.get_python_version(), sys.executable]))",
        )
    )
    prefix, stdlib, platstdlib, extensions, version, executable = facts
    relocated = _relocation(prefix)
    binary = Path(executable).resolve()
    layer.file(binary, f"/usr/bin/python{version}")
    layer.link("/usr/bin/python3", f"python{version}")
    needs = [binary]
    for directory in sorted({Path(d) for d in (stdlib, platstdlib, extensions) if d and Path(d).is_dir()}):
        for source in _library_files(directory):
            layer.file(source, relocated(source))
            if source.suffix == ".so":
                needs.append(source)
    for library in sorted({p for path in needs for p in _libraries(path)}):
        # What does not lie where the loader looks anyway, a 0700 home for instance, moves to where it does.
        at_home = str(library).startswith(("/lib", "/usr/lib"))
        layer.file(library, str(library) if at_home else f"/usr/lib/{library.name}")


def _interpreter() -> Path:
    """The system's own Python where it is whole (Debian's minimal one is not), else the one that runs this."""
    if not sys.platform.startswith("linux"):
        raise ImageError("an agent image can be packed from the files of a Linux machine only")
    candidates = [Path("/usr/bin/python3"), Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"]
    for candidate in candidates:
        if candidate.is_file():
            try:
                _ask(candidate, f"import {NEEDED_MODULES}")
            except subprocess.CalledProcessError:
                continue
            return candidate
    raise ImageError(f"none of {', '.join(map(str, candidates))} can `import {NEEDED_MODULES}`: install a whole Python")


def _ask(interpreter: Path, code: str) -> str:
    return subprocess.run([interpreter, "-I", "-c", code], capture_output=True, text=True, check=True).stdout


def _relocation(prefix: str) -> Callable[[Path], str]:
    """Where a file of an interpreter lies in the image: an interpreter that was not under /usr is as if it were."""

    def relocated(source: Path) -> str:
        path = str(source)
        return "/usr" + path.removeprefix(prefix) if path.startswith(prefix + "/") else path

    return relocated


def _library_files(directory: Path) -> Iterable[Path]:
    for path in sorted(directory.iterdir()):
        if path.is_dir():
            if path.name not in LEFT_OUT and not path.name.startswith("config-"):
                yield from _library_files(path)
        elif path.is_file() and not LEFT_OUT_FILES.search(path.name):
            yield path


def _ldd(path: Path) -> str:
    done = subprocess.run(["ldd", path], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def _libraries(path: Path) -> list[Path]:
    """The files that the loader maps for `path`, the loader itself included."""
    return [Path(p) for p in re.findall(r"(?:=> )?(/\S+) \(0x", _ldd(path))]
