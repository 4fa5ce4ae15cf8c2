"""One image has one name and its registry one key, however it is spelled; what is no reference is told why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hatchway.errors import InvalidReference
from hatchway.registry.reference import ImageReference, parse_reference, parse_registry_host, same_registry

HUB = "https://index.docker.io/v1/"
DIGEST = "sha256:" + "0123456789abcdef" * 4
SHA512 = "sha512:" + "ab" * 64
HEX64 = "1a3f5e7d9c1b3a5f7e9d1c3b5a7f9e1d3c5b7a9f1e3d5d7c9b1a3f5e7d9c1b3a"

ACCEPTED: list[tuple[str, str, str, str | None, str | None, str]] = [
    # text, registry, repository, tag, digest, auth key
    ("nginx", "docker.io", "library/nginx", "latest", None, HUB),
    ("nginx:1.27", "docker.io", "library/nginx", "1.27", None, HUB),
    ("library/nginx", "docker.io", "library/nginx", "latest", None, HUB),
    ("docker.io/nginx", "docker.io", "library/nginx", "latest", None, HUB),
    ("docker.io/library/nginx", "docker.io", "library/nginx", "latest", None, HUB),
    ("index.docker.io/nginx", "docker.io", "library/nginx", "latest", None, HUB),
    ("index.docker.io/library/nginx:1", "docker.io", "library/nginx", "1", None, HUB),
    ("registry-1.docker.io/library/nginx", "docker.io", "library/nginx", "latest", None, HUB),
    ("registry-1.docker.io/nginx", "docker.io", "library/nginx", "latest", None, HUB),
    ("Docker.IO/nginx", "docker.io", "library/nginx", "latest", None, HUB),
    ("grafana/k6", "docker.io", "grafana/k6", "latest", None, HUB),
    ("a/b/c", "docker.io", "a/b/c", "latest", None, HUB),
    ("docker.io/a/b/c:t", "docker.io", "a/b/c", "t", None, HUB),
    ("docker.io:443/nginx", "docker.io:443", "nginx", "latest", None, "docker.io:443"),
    ("ghcr.io/owner/app:v1", "ghcr.io", "owner/app", "v1", None, "ghcr.io"),
    ("GHCR.io/owner/app", "GHCR.io", "owner/app", "latest", None, "GHCR.io"),
    ("quay.io/app", "quay.io", "app", "latest", None, "quay.io"),
    ("reg.local:5000/a/b:1", "reg.local:5000", "a/b", "1", None, "reg.local:5000"),
    ("reg:5000/a", "reg:5000", "a", "latest", None, "reg:5000"),
    ("localhost/x", "localhost", "x", "latest", None, "localhost"),
    ("localhost:5000/x", "localhost:5000", "x", "latest", None, "localhost:5000"),
    ("localhost:5000/x/y:z", "localhost:5000", "x/y", "z", None, "localhost:5000"),
    ("127.0.0.1:5000/x", "127.0.0.1:5000", "x", "latest", None, "127.0.0.1:5000"),
    ("127.0.0.1/x", "127.0.0.1", "x", "latest", None, "127.0.0.1"),
    ("[::1]:5000/x", "[::1]:5000", "x", "latest", None, "[::1]:5000"),
    ("[::1]/x:1", "[::1]", "x", "1", None, "[::1]"),
    ("[2001:db8::1]:65535/a/b", "[2001:db8::1]:65535", "a/b", "latest", None, "[2001:db8::1]:65535"),
    ("REGISTRY/x", "REGISTRY", "x", "latest", None, "REGISTRY"),
    ("Foo/bar", "Foo", "bar", "latest", None, "Foo"),
    ("xn--n3h.com/x", "xn--n3h.com", "x", "latest", None, "xn--n3h.com"),
    ("a-b.c/x", "a-b.c", "x", "latest", None, "a-b.c"),
    # without a slash there is no host: the colon starts a tag
    ("localhost", "docker.io", "library/localhost", "latest", None, HUB),
    ("localhost:5000", "docker.io", "library/localhost", "5000", None, HUB),
    ("reg.local:5000", "docker.io", "library/reg.local", "5000", None, HUB),
    ("192.168.0.1", "docker.io", "library/192.168.0.1", "latest", None, HUB),
    # names and tags at the edges of the grammar
    ("a", "docker.io", "library/a", "latest", None, HUB),
    ("0", "docker.io", "library/0", "latest", None, HUB),
    ("a.b_c__d-e--f", "docker.io", "library/a.b_c__d-e--f", "latest", None, HUB),
    ("x:_", "docker.io", "library/x", "_", None, HUB),
    ("x:V1.2-rc_3", "docker.io", "library/x", "V1.2-rc_3", None, HUB),
    ("x:" + "t" * 128, "docker.io", "library/x", "t" * 128, None, HUB),
    ("q/" + "r" * 253, "docker.io", "q/" + "r" * 253, "latest", None, HUB),
    ("docker.io/" + HEX64, "docker.io", "library/" + HEX64, "latest", None, HUB),
    (HEX64[:-1], "docker.io", "library/" + HEX64[:-1], "latest", None, HUB),
    (HEX64 + ":1", "docker.io", "library/" + HEX64, "1", None, HUB),
    # digests; a tag beside one is kept, and the digest decides
    ("nginx@" + DIGEST, "docker.io", "library/nginx", None, DIGEST, HUB),
    ("nginx:1.27@" + DIGEST, "docker.io", "library/nginx", "1.27", DIGEST, HUB),
    ("127.0.0.1:5000/x@" + DIGEST, "127.0.0.1:5000", "x", None, DIGEST, "127.0.0.1:5000"),
    ("reg.local:5000/a/b:1@" + DIGEST, "reg.local:5000", "a/b", "1", DIGEST, "reg.local:5000"),
    ("x@" + SHA512, "docker.io", "library/x", None, SHA512, HUB),
]

REFUSED = [
    # text, a word of the reason
    ("", "empty"),
    (" nginx", "white space"),
    ("nginx\n", "white space"),
    ("ngi nx", "white space"),
    ("nginx\x00", "control"),
    ("ngïnx", "ASCII"),
    ("https://ghcr.io/a/b", "scheme"),
    ("docker://nginx", "scheme"),
    ("http://localhost:5000/x", "scheme"),
    ("user:pass@ghcr.io/a/b", "credentials"),
    ("user@ghcr.io/a/b", "credentials"),
    ("https://user:pass@ghcr.io/a/b", "credentials"),
    ("user:pass@host", "password"),
    (HEX64, "image id"),
    ("sha256:" + HEX64, "image id"),
    ("Nginx", "lower case"),
    ("docker.io/Library/nginx", "lower case"),
    ("ghcr.io/Owner/app", "lower case"),
    ("localhost/", "missing"),
    ("ghcr.io/", "missing"),
    (":tag", "missing"),
    ("@" + DIGEST, "missing"),
    ("[fc00::1]:5000", "missing"),
    ("/nginx", "empty part"),
    ("a//b", "empty part"),
    ("ghcr.io/a/", "empty part"),
    ("ghcr.io//a", "empty part"),
    ("a/", "empty part"),
    ("nginx:", "empty"),
    ("nginx:-1", "tag"),
    ("nginx:.1", "tag"),
    ("nginx:a:b", "tag"),
    ("nginx:a b", "white space"),
    ("x:" + "t" * 129, "tag"),
    ("nginx@", "digest"),
    ("nginx@sha256:", "digest"),
    ("nginx@sha256:abc", "64"),
    ("nginx@sha256:" + "A" * 64, "lower-case"),
    ("nginx@sha256:" + "a" * 65, "64"),
    ("nginx@md5:" + "a" * 32, "algorithm"),
    ("nginx@" + DIGEST + "@" + DIGEST, "digest"),
    ("-nginx", "each part"),
    ("nginx-", "each part"),
    ("a___b", "each part"),
    ("a..b", "each part"),
    ("a._b", "each part"),
    ("a$b", "each part"),
    ("ghcr.io/a:b/c", "each part"),
    ("-a.io/x", "host name"),
    ("a-.io/x", "host name"),
    ("a..io/x", "host name"),
    (".io/x", "host name"),
    ("a_b.io/x", "host name"),
    (":5000/x", "host is empty"),
    ("host:port/x", "port"),
    ("host:/x", "port"),
    ("host:0/x", "port"),
    ("host:65536/x", "port"),
    ("fc00::1:5000/debian", "brackets"),
    ("[::1/x", "brackets"),
    ("[::1]x/y", "brackets"),
    ("[fe80::1%eth0]:5000/x", "IPv6"),
    ("[2001:db8:3:4::192.0.2.33]:5000/x", "IPv6"),
    ("[1::2::3]/x", "IPv6"),
    ("[]/x", "IPv6"),
    ("r" * 256, "255"),
    ("q/" + "r" * 254, "255"),
]


@pytest.mark.scenario("S29")
@pytest.mark.scenario("S30")
@pytest.mark.parametrize(("text", "expected", "auth_key"), [(row[0], row[1:5], row[5]) for row in ACCEPTED])
def test_a_reference_has_one_registry_repository_version_and_key(
    text: str, expected: tuple[str, str, str | None, str | None], auth_key: str
) -> None:
    reference = parse_reference(text)

    assert reference == ImageReference(*expected)
    assert reference.auth_key == auth_key


@pytest.mark.scenario("S30")
@pytest.mark.parametrize(
    "text",
    [
        "nginx", "nginx:latest", "library/nginx", "docker.io/nginx", "docker.io/library/nginx:latest",
        "index.docker.io/nginx", "index.docker.io/library/nginx", "registry-1.docker.io/library/nginx:latest",
    ],
)  # fmt: skip
def test_every_spelling_of_one_hub_image_is_one_identity(text: str) -> None:
    reference = parse_reference(text)

    assert (reference.normalized, reference.familiar) == ("docker.io/library/nginx:latest", "nginx:latest")


@pytest.mark.scenario("S30")
def test_a_digest_identifies_the_image_whatever_the_tag_beside_it_says() -> None:
    with_tag, without = parse_reference(f"nginx:1.27@{DIGEST}"), parse_reference(f"nginx@{DIGEST}")

    assert with_tag.normalized == without.normalized == f"docker.io/library/nginx@{DIGEST}"
    assert with_tag.version == without.version == DIGEST


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_what_is_no_reference_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidReference) as refused:
        parse_reference(text)

    assert reason in str(refused.value)


@pytest.mark.scenario("S41")
@pytest.mark.parametrize(
    "text",
    [
        "bob:hunter2@ghcr.io/a/b", "https://bob:hunter2@ghcr.io/a", "bob:hunter2@host", "ghcr.io/hunter2$:x",
        "x@hunter2", "x:-hunter2", "HUNTER2hunter2", "hunter2:hunter2/x", "host.io:hunter2/x", "[hunter2]/x",
    ],
)  # fmt: skip
def test_a_refusal_never_quotes_the_reference(text: str) -> None:
    with pytest.raises(InvalidReference) as refused:
        parse_reference(text)

    assert "hunter2" not in str(refused.value).lower()
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("text", [row[0] for row in ACCEPTED])
def test_the_normal_and_the_familiar_spelling_mean_the_same_image(text: str) -> None:
    reference = parse_reference(text)

    assert parse_reference(reference.normalized).normalized == reference.normalized
    assert parse_reference(reference.familiar).normalized == reference.normalized


@given(st.text(alphabet="abAB01.:/@[]-_ \n$", max_size=40))
def test_any_text_is_either_parsed_to_a_stable_name_or_refused(text: str) -> None:
    try:
        reference = parse_reference(text)
    except InvalidReference:
        return

    assert parse_reference(reference.normalized).normalized == reference.normalized


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("docker.io", "docker.io"), ("index.docker.io", "docker.io"), ("registry-1.docker.io", "docker.io"),
        (HUB, "docker.io"), ("ghcr.io", "ghcr.io"), ("reg.local:5000", "reg.local:5000"), ("localhost", "localhost"),
        ("[::1]:5000", "[::1]:5000"), ("registry", "registry"),
    ],
)  # fmt: skip
def test_a_registry_host_is_spelled_as_references_spell_it(text: str, host: str) -> None:
    assert parse_registry_host(text) == host


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("https://ghcr.io", "scheme"), ("ghcr.io/owner", "path"), ("bob:hunter2@ghcr.io", "password"), ("", "empty"),
        ("ghcr.io:x", "port"), ("gh cr.io", "host name"), ("::1", "brackets"),
    ],
)  # fmt: skip
def test_what_is_no_registry_host_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidReference) as refused:
        parse_registry_host(text)

    assert reason in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_registries_are_compared_without_case() -> None:
    assert same_registry("GHCR.io", "ghcr.io")
    assert not same_registry("ghcr.io", "ghcr.io:443")
