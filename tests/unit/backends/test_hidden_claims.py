"""Claim codes that others quote: masked in whatever spelling and company, known or told by their looks; and what an
operator needs to read stays.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Callable, Iterator
from urllib.parse import quote, unquote

import pytest

from hatchway.backends.errors import MASK, quoted, without_any_claims

CLAIM = "7iVyJv1eAibnzgbnxhIefdYTB-jTTFG0D_HLowPaK8E"
USER_DATA = (
    "#!/bin/sh\nexport KICI_ORCHESTRATOR_URL=http://gateway:8080\nexport KICI_SCALER_CLAIM_CODE={}\nexec agent\n"
)


def in_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


QUOTES: dict[str, Callable[[str], str]] = {
    "as it is": "the claim is {}.".format,
    "after a percent": "user_data=env%3D{}".format,
    "after letters": ("y" * 60 + "{}").format,
    "before letters": "{}yes".format,
    "after an option": "run --claim-{} now".format,
    "in JSON": lambda claim: json.dumps({"userData": f"a\n{claim}\nb"}),
    "in JSON in JSON": lambda claim: json.dumps(json.dumps({"userData": f"a\n{claim}\nb"})),
    "all in percents": lambda claim: "q=" + "".join(f"%{ord(c):02x}" for c in claim),
    "its dashes in percents": lambda claim: "q=" + claim.replace("-", "%2D").replace("_", "%5F"),
    "all in JSON's numbers": lambda claim: "".join(f"\\u{ord(c):04x}" for c in claim),
    "hexadecimal": lambda claim: claim.encode().hex(),
    "HEXADECIMAL": lambda claim: USER_DATA.format(claim).encode().hex().upper(),
    "user data": USER_DATA.format,
    "user data in base64": lambda claim: in_base64(USER_DATA.format(claim)),
    "base64, one further": lambda claim: in_base64("x" + USER_DATA.format(claim)),
    "base64, two further": lambda claim: in_base64("xy" + USER_DATA.format(claim)),
    "base64 of the code": in_base64,
    "base64 at an end of something": lambda claim: "ab" + in_base64(claim),
    "base64 for URLs": lambda claim: base64.urlsafe_b64encode(USER_DATA.format(claim).encode()).decode(),
    "base64 in percents": lambda claim: quote(in_base64(USER_DATA.format(claim)), safe=""),
    "base64 in lines": lambda claim: base64.encodebytes(USER_DATA.format(claim).encode()).decode(),
    "base64 in lines in JSON": lambda claim: json.dumps(base64.encodebytes(USER_DATA.format(claim).encode()).decode()),
    "base64 twice": lambda claim: in_base64(in_base64(claim)),
    "over two lines": lambda claim: f"code: {claim[:20]}\n      {claim[20:]}\n",
}

READABLE = [
    "scaler-01a22b9660d37d53bec952f45bca0587",
    "no such container: hatchway-scaler-01a22b9660d37d53bec952f45bca0587",
    "scale-down/scaler-01a22b9660d37d53bec952f45bca0587 in namespace customer-eu-central-1-production",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "container 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 is gone",
    "ghcr.io/acme/agents/hatchway-runner-with-a-very-long-name-indeed:2026-11-30-build-1234",
    "sha512:" + "0123456789abcdef" * 8,
    "i-0123456789abcdef0 of ami-0123456789abcdef0 in subnet-0123456789abcdef0",
    "arn:aws:sts::123456789012:assumed-role/HatchwayWorkerRole/i-0123456789abcdef0 is not authorized",
    "arn:aws:iam::123456789012:instance-profile/MyCompanyHatchwayProductionAgentsInstanceRole",
    "arn:aws:iam::123456789012:role/eksctl-prod-addon-iamserviceaccount-ci-hatchway",
    "The code InvalidCapacityReservationIdMalformedException",
    "https://sqs.eu-central-1.amazonaws.com/123456789012/hatchway-agents-production-eu-central-1-scale-up.fifo",
    "/Volumes/Data/Projects/2026/Hatchway/Builds/Release/agents/bin/start-agent-of-the-scaler",
    "C:\\new\\table\\runner 100%25 of 50%",
    "Traceback:\n  File worker_of_the_customers_provisioning.py\n  NoSuchHostInTheInventoryOfMachines\n",
    "0a1b2c3d-0000-4000-8000-0123456789ab 0a1b2c3d-0000-4000-8000-0123456789ab",
]


@pytest.mark.scenario("S41")
@pytest.mark.parametrize("quoting", QUOTES.values(), ids=QUOTES)
def test_a_code_that_nobody_knows_any_more_is_masked(quoting: Callable[[str], str]) -> None:
    for claim in (CLAIM, *(secrets.token_urlsafe(32) for _ in range(5))):
        words = without_any_claims(f"failed: {quoting(claim)}")

        _shows_nothing_of(claim, words)
        assert MASK in words
        assert words.startswith("failed: ")


@pytest.mark.scenario("S41")
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("quoting", QUOTES.values(), ids=QUOTES)
def test_one_that_lies_across_the_cut_is_masked(quoting: Callable[[str], str], known: bool) -> None:
    said = quoting(CLAIM)
    for before in range(500 - len(said), 500, 7):
        words = quoted("z" * (before - 1) + " " + said, 500, [CLAIM] if known else [])

        _shows_nothing_of(CLAIM, words)
        assert len(words) <= 501


@pytest.mark.parametrize("words", READABLE)
def test_what_an_operator_needs_stays_readable(words: str) -> None:
    assert without_any_claims(words) == words
    assert quoted(words, 500) == " ".join(words.split())


def test_a_token_that_is_no_code_is_masked_as_well() -> None:
    token = base64.b64encode(secrets.token_bytes(300)).decode()

    words = without_any_claims(f"X-Amz-Security-Token: {token} refused")

    assert not any(token[at : at + 43] in words for at in range(len(token) - 42))
    assert words.endswith(" refused")


def test_what_is_around_a_code_stays() -> None:
    said = "no host for user_data=env%3D{}&zone=a: full"

    assert quoted(said.format(CLAIM), 500) == said.format(MASK)


@pytest.mark.parametrize("filler", ["y", "a b ", "\n", "%41", "\\n", "\\", CLAIM])
def test_megabytes_are_quoted_at_once(filler: str) -> None:
    words = quoted(filler * (5_000_000 // len(filler)) + CLAIM, 500)

    assert CLAIM[:12] not in words
    assert len(words) <= 501


def test_half_of_a_long_secret_at_the_end_of_what_is_searched_is_not_shown() -> None:
    secret = "".join(secrets.token_hex(4) + " " for _ in range(7_000))

    for size in range(400_000, 660_000, 64_000):
        assert secret[:9] not in quoted(" " * size + secret, 500, [secret])


def _shows_nothing_of(claim: str, words: str) -> None:
    """Not ten characters of it, whichever of the spellings is undone."""
    for text in _readings(words, depth=2):
        assert not any(claim[at : at + 10] in text for at in range(len(claim) - 9)), (words, text)


def _readings(words: str, depth: int) -> Iterator[str]:
    bare = unquote("".join(words.replace("\\n", "\n").split()))
    numbers = re.sub(r"\\u(....)", lambda found: chr(int(found[1], 16)), bare)
    yield from (words, bare, numbers)
    if depth == 0:
        return
    for run in re.findall(r"[A-Za-z0-9+/_-]{12,}", bare):
        for start in range(4):
            part = run[start : start + (len(run) - start) // 4 * 4].replace("-", "+").replace("_", "/")
            yield from _readings(base64.b64decode(part).decode("latin-1"), depth - 1)
    for run in re.findall(r"[0-9A-Fa-f]{20,}", bare):
        for start in range(2):
            yield bytes.fromhex(run[start : start + (len(run) - start) // 2 * 2]).decode("latin-1")


@pytest.mark.parametrize("quoting", QUOTES.values(), ids=QUOTES)
def test_the_search_for_it_sees_it_where_it_is(quoting: Callable[[str], str]) -> None:
    with pytest.raises(AssertionError):
        _shows_nothing_of(CLAIM, quoting(CLAIM))
