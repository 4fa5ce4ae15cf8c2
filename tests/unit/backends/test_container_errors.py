"""The words of engines and registries, and what each means. Real answers stand in tests/docker; here are the others':
those of newer Docker engines, of the containerd image store and of Podman."""

from __future__ import annotations

import pytest

from hatchway.backends.container_errors import EngineRefused, container_error, registry_error
from hatchway.errors import PermanentSpawnError, SpawnCode, TransientSpawnError
from hatchway.registry.reference import parse_reference

IMAGE = "reg.example.com:5000/team/app:1"
PERMANENT, TRANSIENT = PermanentSpawnError, TransientSpawnError

REGISTRY_ANSWERS = [
    # Docker 28 with its own image store
    (404, "manifest for reg.example.com:5000/team/app:1 not found: manifest unknown: manifest unknown",
     "image_not_found"),
    (401, "unauthorized: authentication required", "auth_denied"),
    (429, "toomanyrequests: You have reached your unauthenticated pull rate limit.", "rate_limited"),
    (404, "no matching manifest for linux/amd64 in the manifest list entries", "wrong_architecture"),
    # the containerd image store
    (404, 'failed to resolve reference "reg.example.com:5000/team/app:1": reg.example.com:5000/team/app:1: not found',
     "image_not_found"),
    (500, 'failed to resolve reference "x": unexpected status from HEAD request to https://reg/v2/x: 503 Service '
     "Unavailable", "registry_unreachable"),
    (500, "unexpected status from GET request to https://reg/v2/x: 429 Too Many Requests", "rate_limited"),
    (403, "pull access denied, repository does not exist or may require authorization: server message: "
     "insufficient_scope: authorization failed", "image_not_found"),
    (400, "image with reference x was found but does not provide the specified platform (linux/amd64)",
     "wrong_architecture"),
    (500, "unexpected commit digest sha256:aa, expected sha256:bb: failed precondition", "registry_unreachable"),
    # Docker 20.10, against Docker Hub
    (404, "pull access denied for no-such, repository does not exist or may require 'docker login': denied: requested "
     "access to the resource is denied", "image_not_found"),
    (500, "Get https://reg/v2/: unauthorized: incorrect username or password", "auth_denied"),
    (0, "write /var/lib/docker/tmp/GetImageBlob1: no space left on device", "disk_full"),
    (500, "Get https://reg/v2/: x509: certificate signed by unknown authority", "registry_unreachable"),
    (500, "Get https://reg/v2/: http: server gave HTTP response to HTTPS client", "registry_unreachable"),
    (500, "Get https://reg/v2/: net/http: TLS handshake timeout", "registry_unreachable"),
    (500, "Get https://reg/v2/: read tcp 1.2.3.4:5->6.7.8.9:443: read: connection reset by peer",
     "registry_unreachable"),
    # Podman 4 and 5
    (500, "initializing source docker://reg/app:1: reading manifest 1 in reg/app: manifest unknown", "image_not_found"),
    (500, "initializing source docker://reg/app:1: unable to retrieve auth token: invalid username/password: "
     "unauthorized: authentication required", "auth_denied"),
    (500, 'pinging container registry reg: Get "http://reg/v2/": dial tcp 1.2.3.4:5000: connect: connection refused',
     "registry_unreachable"),
    (500, 'choosing an image from manifest list docker://reg/app:1: no image found in image index for architecture '
     '"amd64", variant "", OS "linux"', "wrong_architecture"),
    (500, "reading manifest 1 in reg/app: received unexpected HTTP status: 502 Bad Gateway", "registry_unreachable"),
]  # fmt: skip

TRANSIENT_CODES = {"rate_limited", "registry_unreachable", "disk_full"}


@pytest.mark.parametrize(("status", "text", "code"), REGISTRY_ANSWERS)
def test_a_registry_s_answer_is_understood_from_every_engine(status: int, text: str, code: str) -> None:
    error = registry_error(
        EngineRefused("pull", status, text),
        parse_reference(IMAGE),
        credentials="job",
        platform="linux/amd64",
        secrets=(),
    )

    tls_of_the_registry = "x509" in text or "HTTPS client" in text
    assert error.code == SpawnCode(code)
    assert isinstance(error, TRANSIENT if code in TRANSIENT_CODES and not tls_of_the_registry else PERMANENT)


CONTAINER_ANSWERS = [
    (400, "No command specified", PERMANENT, "no_agent"),
    (500, "no command or entrypoint provided, and no CMD or ENTRYPOINT from image", PERMANENT, "no_agent"),
    (400, 'OCI runtime create failed: container_linux.go:380: starting container process caused: exec: "agent": '
     "executable file not found in $PATH: unknown", PERMANENT, "command_not_found"),
    (500, "crun: executable file `agent` not found in $PATH: No such file or directory: OCI runtime attempted to "
     "invoke a command that was not found", PERMANENT, "command_not_found"),
    (400, 'exec: "docker-init": executable file not found in $PATH', PERMANENT, "daemon_unavailable"),
    (400, "Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available", PERMANENT, "invalid_spec"),
    (400, "Minimum memory limit allowed is 6MB", PERMANENT, "invalid_spec"),
    (500, "runc create failed: unable to start container process: error setting cgroup config for procHooks process: "
     "unable to set memory limit to 1000 (current usage: 2162688)", PERMANENT, "invalid_spec"),
    (400, "invalid CapAdd: unknown capability: \"CAP_X\"", PERMANENT, "invalid_spec"),
    (500, "exec /agent: exec format error", PERMANENT, "wrong_architecture"),
    (500, "mkdir /var/lib/docker/overlay2/x: no space left on device", TRANSIENT, "disk_full"),
    (500, "fork/exec /proc/self/exe: cannot allocate memory", TRANSIENT, "capacity"),
    (500, "fork/exec /usr/bin/runc: resource temporarily unavailable", TRANSIENT, "capacity"),
    (404, "No such image: sha256:aa", TRANSIENT, "image_not_found"),
    (404, "No such container: abc", TRANSIENT, "daemon_unavailable"),
    (409, "container is marked for removal and cannot be started", TRANSIENT, "daemon_unavailable"),
    # what no row knows is judged by its status
    (418, "this engine is a teapot", PERMANENT, "invalid_spec"),
    (500, "an unforeseen error", TRANSIENT, "daemon_unavailable"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "text", "consequence", "code"), CONTAINER_ANSWERS)
def test_a_refused_start_is_understood_from_every_engine(
    status: int, text: str, consequence: type[Exception], code: str
) -> None:
    error = container_error(EngineRefused("start", status, text), "app:1", platform="linux/amd64", secrets=())

    assert (type(error), error.code) == (consequence, SpawnCode(code))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('Conflict. The container name "/hatchway-a" is already in use by container "b".', "name_in_use"),
        ('creating container storage: the container name "hatchway-a" is already in use by b', "name_in_use"),
        ("removal of container b is already in progress", "being_removed"),
        ("Cannot kill container: b: Container b is not running", "not_running"),
        ("can only kill running containers. b is in state exited: container state improper", "not_running"),
    ],
)
def test_the_same_state_of_a_container_is_read_from_docker_and_podman(text: str, said: str) -> None:
    for status in (409, 500):
        refused = EngineRefused("do it", status, text)

        assert [n for n in ("name_in_use", "being_removed", "not_running") if getattr(refused, n)] == [said]


@pytest.mark.parametrize(
    ("status", "text", "missing"),
    [
        (404, "page not found", True),
        (404, "Not Found", True),
        (501, "not implemented", True),
        (404, "manifest unknown: manifest unknown", False),
        (404, "reg/app:1: not found", False),
        (500, "not supported", False),
    ],
)
def test_a_call_that_an_engine_lacks_is_told_from_an_image_that_a_registry_lacks(
    status: int, text: str, missing: bool
) -> None:
    assert EngineRefused("ask", status, text).no_such_call is missing


def test_an_image_s_own_name_is_never_taken_for_an_answer() -> None:
    reference = parse_reference("reg.example.com/denied/unauthorized:toomanyrequests")
    text = f'Get "https://reg.example.com/v2/denied/unauthorized/manifests/x": {reference.normalized}: i/o timeout'

    error = registry_error(
        EngineRefused("pull", 500, text), reference, credentials=None, platform="linux/amd64", secrets=()
    )

    assert error.code == SpawnCode.REGISTRY_UNREACHABLE


def test_what_an_engine_says_is_passed_on_short_plain_and_without_secrets() -> None:
    text = "denied: \x1b[31mtoken hunter2-hunter2\x1b[0m " + "x" * 5000

    error = registry_error(
        EngineRefused("pull", 500, text),
        parse_reference(IMAGE),
        credentials="job",
        platform="linux/amd64",
        secrets=("hunter2-hunter2",),
    )

    assert "hunter2" not in str(error)
    assert "\x1b" not in str(error)
    assert len(str(error)) < 700
