"""What a container will run, checked before it starts, and the agent that is copied into images that have none.

Agents run under the engine's init, and an init starts whatever its child is: a missing entrypoint would look like an
agent that ended with code 127. So the entrypoint is looked up in the created container's files, in milliseconds, and
its absence is a typed failure of the spawn.
"""

from __future__ import annotations

import base64
import io
import json
import posixpath
import tarfile
from collections.abc import Callable
from importlib import resources

from hatchway.backends.base import SpawnSpec
from hatchway.backends.container_engine import Client
from hatchway.backends.container_pull import Image
from hatchway.errors import PermanentSpawnError, SpawnCode

AGENT_PATH = "/.hatchway/agent.py"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""What the engines set where an image says nothing."""

_DIRECTORY = 1 << 31  # Go's fs.FileMode, which the archive call answers in
_SYMLINK = 1 << 27


def agent_source() -> bytes:
    """The one-file agent of this installation."""
    return (resources.files("hatchway") / "agent.py").read_bytes()


def inject_command() -> list[str]:
    """How the copied agent is started: by the image's own Python, whatever the image's entrypoint is."""
    return ["python3", AGENT_PATH]


def inject_agent(client: Client, container_id: str, source: bytes) -> None:
    """Copy the agent into a container that has not started. Readable by every user of the image. Idempotent."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        folder = tarfile.TarInfo(posixpath.dirname(AGENT_PATH).lstrip("/"))
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(folder)
        file = tarfile.TarInfo(AGENT_PATH.lstrip("/"))
        file.size, file.mode = len(source), 0o644
        archive.addfile(file, io.BytesIO(source))
    client.put_archive(container_id, "/", packed.getvalue())


def check_entry(client: Client, container_id: str, image: Image, spec: SpawnSpec) -> None:
    """Raises PermanentSpawnError where what the container would run is not in its files, or cannot be run.

    One look per directory of PATH, about 2 ms each. Permissions are checked for anybody, not for the image's user.
    """
    inject = spec.label_set.agent == "inject"
    name = spec.image or image.id
    argv0 = inject_command()[0] if inject else image.command[0]
    path = spec.env.get("PATH") or image.path or DEFAULT_PATH
    found = _look_up(argv0, path, image.working_dir, lambda place: _mode(client, container_id, place))
    if found is not None and not found & _DIRECTORY and found & 0o111:
        return
    # A container that somebody just removed has no files either, and the image is not to blame for that.
    client.inspect_container(container_id)
    if inject:
        raise PermanentSpawnError(
            SpawnCode.NO_AGENT,
            f"{name} has no python3 on its PATH, which `agent: inject` needs (3.8 or newer); add one to the image, or "
            "use an image whose entrypoint is an agent",
        )
    problem = "is not in the image" if found is None else "cannot be executed"
    raise PermanentSpawnError(
        SpawnCode.COMMAND_NOT_FOUND, f"the entrypoint of {name} {problem}: {argv0}; correct its ENTRYPOINT or CMD"
    )


def _look_up(argv0: str, path: str, working_dir: str, mode_of: Callable[[str], int | None]) -> int | None:
    """The mode of the first executable file that execvp would find, else of whatever it found instead."""
    if "/" in argv0:
        return mode_of(posixpath.join("/", working_dir, argv0))
    seen: int | None = None
    for folder in path.split(":"):
        mode = mode_of(posixpath.join("/", working_dir, folder, argv0))
        if mode is not None and not mode & _DIRECTORY and mode & 0o111:
            return mode
        seen = mode if seen is None else seen
    return seen


def _mode(client: Client, container_id: str, place: str, follow: bool = True) -> int | None:
    """The Go file mode of a file in the container, through one link; None where there is none."""
    url = f"{client.base_url}/v{client.api_version}/containers/{container_id}/archive"
    answer = client.head(url, params={"path": place}, timeout=client.timeout)
    if answer.status_code == 404:
        return None
    header = answer.headers.get("X-Docker-Container-Path-Stat")
    if answer.status_code != 200 or not header:
        return 0o755  # the engine cannot say; then the start will
    stat = json.loads(base64.b64decode(header))
    target = stat.get("linkTarget")
    if stat["mode"] & _SYMLINK and target and follow:
        # The engine resolves a chain of links to its end, inside the container's own root.
        return _mode(client, container_id, target, follow=False)
    return int(stat["mode"])
