"""URLs of a configuration: who is connected to is who was checked, and what can be read in two ways is refused."""

from __future__ import annotations

import pytest

from hatchway.urls import UrlError, endpoint_problems, is_loopback, read_url

ELSEWHERE = [
    "127.evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "localhost.", "evil-127.0.0.1.nip.example",
    "10.0.0.1", "[::2]", "[::ffff:10.0.0.1]",
]  # fmt: skip
"""Hosts that are not this one, whatever they begin or end with."""

UNREADABLE = [
    "127.1", "0x7f.1", "0177.0.0.1", "2130706433", "1.2.3.256", "a..b", "-a.example", "a_.-b", "[::1", "::1",
    "[127.0.0.1]",
    "[fe80::1%25eth0]", "a b", "127.0.0.1\\@evil.example", "evil.example\\.127.0.0.1", "a:99999", "a:x", "a\t.example",
    "\u2100.example", "", "a[::1]", "[::1]a", "[::1][::1]", "[::1]:x",
]  # fmt: skip


@pytest.mark.parametrize("host", ELSEWHERE)
def test_nobody_else_passes_for_loopback(host: str) -> None:
    assert not is_loopback(read_url(f"http://{host}/1/q").host)
    assert list(endpoint_problems(f"http://{host}:4566", "claim codes"))
    assert not list(endpoint_problems(f"https://{host}:4566", "claim codes"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.255.0.7", "[::1]", "localhost", "LOCALHOST"])
def test_loopback_is_known_by_its_addresses_and_one_name(host: str) -> None:
    assert is_loopback(read_url(f"http://{host}:4566/1/q").host)
    assert not list(endpoint_problems(f"http://{host}:4566", "claim codes"))


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("host", UNREADABLE)
def test_what_parsers_could_read_in_two_ways_is_no_url(host: str, scheme: str) -> None:
    with pytest.raises(UrlError) as refused:
        read_url(f"{scheme}://{host}/a")

    assert not host or host not in str(refused.value)
    assert list(endpoint_problems(f"{scheme}://{host}/a", "claim codes"))


@pytest.mark.parametrize(
    "host", ["hooks.example.com", "a_b.example", "xn--bcher-kva.example", "b\u00fccher.example", "a", "a1"]
)
def test_names_are_read_as_they_stand(host: str) -> None:
    assert read_url(f"https://{host}:8443/a?b#c").host == host
