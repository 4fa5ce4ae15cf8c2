"""The text of an isolated network's rules, and the policy that they come from."""

from __future__ import annotations

from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hatchway.addresses import NEVER, PRIVATE, AddressError, parse_opening
from hatchway.backends.base import SpawnSpec
from hatchway.backends.container_network import bridged_packets_are_filtered, table_prefix
from hatchway.backends.container_policy import Policy, nameservers, split_endpoint
from hatchway.backends.container_rules import Endpoint, Openings, RuleSet, rule_set
from hatchway.config.schema import LabelSet, Scaler
from hatchway.errors import PermanentSpawnError

GATEWAY = Endpoint(IPv4Address("172.17.0.1"), 8780)


def rules(**openings: Any) -> RuleSet:
    return rule_set("hatchway_x", "hw-0123456789ab", Openings(**{"gateways": [GATEWAY], **openings}))


def chain(found: RuleSet, name: str) -> list[str]:
    """The rules of one chain, without their comments."""
    _, _, rest = found.text.partition(f"  chain {name} {{\n")
    body, _, _ = rest.partition("  }\n")
    return [line.strip().partition(' comment "')[0] for line in body.splitlines() if "comment" in line]


def test_a_table_is_replaced_in_one_transaction() -> None:
    assert rules().text.startswith("add table inet hatchway_x\ndelete table inet hatchway_x\ntable inet hatchway_x {\n")


def test_every_rule_bears_a_mark_of_its_own() -> None:
    found = rules(nameservers=[IPv4Address("10.0.0.2")], host_ports=[80], closed=[GATEWAY])

    assert len(set(found.marks)) == len(found.marks) == found.text.count("comment")
    assert [mark for mark in found.marks if f'comment "{mark}"' not in found.text] == []


def test_the_host_is_closed_at_the_end_and_the_rest_has_a_last_word_too() -> None:
    for found in (rules(), rules(allow=[]), rules(allow=[parse_opening("10.0.0.0/8")])):
        assert chain(found, "to_host")[-1] == "drop"
        assert chain(found, "elsewhere")[-1] == ("accept" if found == rules() else "drop")


def test_what_no_policy_opens_is_dropped_before_anything_is_opened() -> None:
    listed = ", ".join(map(str, NEVER))

    elsewhere = chain(
        rules(allow=[parse_opening("0.0.0.0/0")], closed=[Endpoint(IPv4Address("203.0.113.9"), 5432)]), "elsewhere"
    )

    assert elsewhere == [
        "jump known",
        f"ip daddr {{ {listed} }} drop",
        f"ct original ip daddr {{ {listed} }} drop",
        "ip daddr 203.0.113.9 tcp dport 5432 drop",
        "meta l4proto tcp ct original ip daddr 203.0.113.9 ct original proto-dst 5432 drop",
        "ip daddr 0.0.0.0/0 ct original ip daddr 0.0.0.0/0 accept",
        "drop",
    ]


def test_private_networks_are_closed_by_both_their_addresses() -> None:
    listed = ", ".join(map(str, PRIVATE))

    assert chain(rules(), "elsewhere")[-3:] == [
        f"ip daddr {{ {listed} }} drop",
        f"ct original ip daddr {{ {listed} }} drop",
        "accept",
    ]


def test_nothing_but_ipv4_passes_and_only_what_is_named_is_known() -> None:
    assert chain(rules(nameservers=[IPv4Address("10.0.0.2"), IPv4Address("10.0.0.2")]), "known") == [
        "ct direction reply accept",
        "meta nfproto != ipv4 drop",
        "meta l4proto tcp ct original ip daddr 172.17.0.1 ct original proto-dst 8780 accept",
        "ip daddr { 10.0.0.2 } meta l4proto { tcp, udp } th dport 53 accept",
    ]
    assert chain(rules(gateways=[]), "known") == ["ct direction reply accept", "meta nfproto != ipv4 drop"]


@pytest.mark.parametrize(
    ("text", "network", "port"),
    [
        ("203.0.113.7", "203.0.113.7/32", None),
        (" 203.0.113.0/24 ", "203.0.113.0/24", None),
        ("10.0.0.0/8:443", "10.0.0.0/8", 443),
        ("203.0.113.7:65535", "203.0.113.7/32", 65535),
        ("0.0.0.0/0", "0.0.0.0/0", None),
    ],
)
def test_an_opening_is_a_network_on_every_port_or_on_one(text: str, network: str, port: int | None) -> None:
    found = parse_opening(text)

    assert (str(found.network), found.port) == (network, port)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("registry.example", "host name"),
        ("localhost:80", "host name"),
        ("169.254.169.254", "169.254.0.0/16"),
        ("127.0.0.1:80", "127.0.0.0/8"),
        ("255.255.255.255", "240.0.0.0/4"),
        ("10.0.0.1/8", "did you mean 10.0.0.0/8"),
        ("::1", "IPv6"),
        ("10.0.0.1:", "port"),
        ("10.0.0.1:0", "port"),
        ("10.0.0.1:+5", "port"),
        ("10.0.0.1: 5", "port"),
        ("", "IPv4 address"),
        ("10.0.0", "IPv4 address"),
        ("10.0.0.0/33", "IPv4 address"),
    ],
)
def test_what_is_no_opening_is_refused_in_a_sentence(text: str, said: str) -> None:
    with pytest.raises(AddressError, match=said):
        parse_opening(text)


@given(st.text(max_size=40) | st.from_regex(r"[0-9./:]{0,20}", fullmatch=True))
def test_no_text_gets_into_the_rules_as_anything_but_an_address(text: str) -> None:
    try:
        found = parse_opening(text)
    except AddressError:
        return
    ip_address(str(found.network.network_address))
    assert found.port is None or 1 <= found.port <= 65535
    assert not any(found.network.subnet_of(never) for never in NEVER)


def spec(policy: dict[str, Any] | None = None) -> SpawnSpec:
    label_set = LabelSet.model_validate({"labels": ["linux"], "image": "x", "networkPolicy": policy})
    scaler = Scaler.model_validate(
        {"name": "s", "type": "container", "maxAgents": 1, "labelSets": [label_set.model_dump()]}
    )
    return SpawnSpec(
        agent_id="a", scaler=scaler, label_set=label_set, labels=("linux",), installation_id="i", env={}, image="x"
    )


@pytest.mark.parametrize(
    ("urls", "gateways"),
    [
        ("http://host.docker.internal:8780", ("host.docker.internal:8780",)),
        ("https://gateway.example/hatchway", ("gateway.example:443",)),
        ("http://b:1, http://a ,http://b:1,", ("a:80", "b:1")),
        ("http://GATEWAY:1", ("gateway:1",)),
    ],
)
def test_the_gateways_of_a_policy_are_what_the_agent_is_told(urls: str, gateways: tuple[str, ...]) -> None:
    policy = Policy.of(spec(), urls)

    assert policy.gateways == gateways
    assert [split_endpoint(gateway)[1] for gateway in gateways] == [int(g.rpartition(":")[2]) for g in gateways]


@pytest.mark.parametrize("url", ["http://[::1]:8780", "http://", "gateway", "http://a:b", "http://a:99999"])
def test_a_gateway_that_no_rule_can_name_is_refused(url: str) -> None:
    with pytest.raises(PermanentSpawnError, match="IPv4 address or name"):
        Policy.of(spec(), url)


SAME: tuple[dict[str, Any] | None, dict[str, Any] | None] = (
    {"allowlist": ["10.0.0.1", "10.0.0.2"], "hostAccess": [2, 1]},
    {"allowlist": ["10.0.0.2", "10.0.0.1", "10.0.0.1"], "hostAccess": [1, 2, 2]},
)
OTHERS: list[dict[str, Any] | None] = [
    None, SAME[0], {"allowlist": ["10.0.0.1"]}, {"denyAll": True}, {"hostAccess": [1, 2]},
]  # fmt: skip


def test_policies_that_mean_the_same_share_a_network_and_no_others_do() -> None:
    one, other = (Policy.of(spec(policy), "http://a:1") for policy in SAME)
    keys = [Policy.of(spec(policy), "http://a:1").key for policy in OTHERS]

    assert one.key == other.key
    assert len({*keys, Policy.of(spec(), "http://b:1").key}) == len(keys) + 1
    assert Policy.of(spec({"hostAccess": []}), "http://a:1").key == Policy.of(spec(), "http://a:1").key


@pytest.mark.parametrize("policy", OTHERS)
def test_a_policy_is_read_back_from_its_network_s_label(policy: dict[str, Any] | None) -> None:
    written = Policy.of(spec(policy), "http://a:1")

    assert Policy.from_label(written.label) == written


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("nameserver 10.0.0.2\n", ["10.0.0.2"]),
        ("# c\nsearch x\nnameserver 1.1.1.1 # no\n nameserver 8.8.8.8\nnameserver\n", ["1.1.1.1", "8.8.8.8"]),
        ("nameserver 127.0.0.53\nnameserver fe80::1%eth0\n", []),
        ("".join(f"nameserver 10.0.0.{i}\n" for i in range(1, 6)), ["10.0.0.1", "10.0.0.2", "10.0.0.3"]),
        ("", []),
    ],
)
def test_the_nameservers_are_those_that_an_agent_s_network_can_reach(text: str, servers: list[str]) -> None:
    assert [str(server) for server in nameservers(text)] == servers


@pytest.mark.parametrize(
    ("everywhere", "here", "answer", "then"),
    [
        ("1", "0", True, "0"),
        ("0", "1", True, "1"),
        ("0", "0", True, "1"),
        (None, "1", False, "1"),
        ("0", None, False, None),
    ],
    ids=["everywhere", "on this bridge", "switched on for this bridge", "no module", "no bridge"],
)
def test_what_agents_send_each_other_has_to_pass_the_firewall(
    *, tmp_path: Path, everywhere: str | None, here: str | None, answer: bool, then: str | None
) -> None:
    files = {
        tmp_path / "proc/sys/net/bridge/bridge-nf-call-iptables": everywhere,
        (own := tmp_path / "sys/class/net/hw-a/bridge/nf_call_iptables"): here,
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True)
        if text is not None:
            path.write_text(f"{text}\n")

    assert bridged_packets_are_filtered("hw-a", "iptables", tmp_path) is answer
    assert (own.read_text().strip() if own.exists() else None) == then


def test_tables_of_two_installations_do_not_share_a_name() -> None:
    assert table_prefix("one") != table_prefix("two")
    assert len(table_prefix("x" * 500)) < 24


def test_what_is_closed_is_closed_before_any_port_of_the_host_is_opened() -> None:
    database = Endpoint(IPv4Address("172.17.0.1"), 5432)

    to_host = chain(rules(host_ports=[5432, 80], closed=[database]), "to_host")

    opens = next(number for number, rule in enumerate(to_host) if rule.endswith("accept"))
    closes = [number for number, rule in enumerate(to_host) if "5432" in rule and rule.endswith("drop")]
    assert to_host[opens] == "meta l4proto { tcp, udp } th dport { 5432, 80 } accept"
    assert len(closes) == 2, "by the address that was asked for, and by what it was rewritten to"
    assert max(closes) < opens


METADATA_ADDRESSES = {"Azure": "168.63.129.16", "Alibaba": "100.100.100.200", "Oracle": "192.0.0.192"}


@pytest.mark.parametrize("address", METADATA_ADDRESSES.values(), ids=METADATA_ADDRESSES)
@pytest.mark.parametrize("text", ["{}", "{}:80", "{}/32"])
def test_no_policy_opens_what_a_cloud_tells_its_machines(address: str, text: str) -> None:
    with pytest.raises(AddressError, match="no policy opens"):
        parse_opening(text.format(address))


@pytest.mark.parametrize("address", METADATA_ADDRESSES.values(), ids=METADATA_ADDRESSES)
def test_what_a_cloud_tells_its_machines_is_closed_before_a_wider_network_is_opened(address: str) -> None:
    elsewhere = chain(rules(allow=[parse_opening("0.0.0.0/0")]), "elsewhere")

    closes = [number for number, rule in enumerate(elsewhere) if address in rule and rule.endswith("drop")]
    opens = [number for number, rule in enumerate(elsewhere) if rule.endswith("accept")]
    assert len(closes) == 2, "by the address that was asked for, and by what it was rewritten to"
    assert max(closes) < min(opens)
