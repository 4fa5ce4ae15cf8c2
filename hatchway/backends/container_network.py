"""Isolated networks: a bridge for the agents of one policy, with firewall rules that stand before any agent does.

Who referees: a network and its bridge bear a random name that is never used again, and a container is bound to its
network by that name. So whoever removes an unused network cannot open one that somebody else makes meanwhile: a
container of a removed network does not start, and the table that goes last belongs to nobody any more. Two workers that
make a network for one policy at once make two; both are good, the older one is taken from then on, the other is swept.

That bridge's name in the worker's own network namespace also proves that its firewall is the engine's: behind a remote
socket, in a virtual machine or in a worker's own container it is not there, and nothing is started.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_network
from pathlib import Path
from typing import Any

import structlog

from hatchway.addresses import parse_opening
from hatchway.backends.base import SpawnSpec
from hatchway.backends.container_engine import Engine
from hatchway.backends.container_firewall import Firewall, FirewallUnusable, RulesMissing
from hatchway.backends.container_policy import HOST_NAME, Policy, is_address, nameservers, split_endpoint
from hatchway.backends.container_rules import Endpoint, Openings, rule_set
from hatchway.errors import PermanentSpawnError, SpawnCode, SpawnError, TransientSpawnError

log = structlog.get_logger(__name__)

INSTALLATION = "hatchway.installation"
POLICY = "hatchway.network-policy"
KEY = "hatchway.network-policy-key"
BRIDGE_NAME = "com.docker.network.bridge.name"
BRIDGE_ICC = "com.docker.network.bridge.enable_icc"
BRIDGE_PREFIX = "hw-"

RESOLVE_TIMEOUT = 10.0  # seconds
RESOLV_CONF = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
"""The second holds the real servers where the first names systemd's stub on loopback."""
_INSTALL_ATTEMPTS = 5
_NETFILTER = ("iptables", "ip6tables")


@dataclass(frozen=True)
class Attachment:
    """The network that one agent's container goes to, and what its container is told of it."""

    network: str
    table: str
    hosts: Mapping[str, str]
    """Names of its /etc/hosts."""
    dns: tuple[str, ...] = ()
    """Its resolver's servers. Empty: the engine's own choice."""


@dataclass(frozen=True)
class Network:
    """One of this installation's networks, as the engine lists it."""

    name: str
    installation_id: str
    bridge: str
    key: str
    policy: str
    created: str
    gateway: str | None
    sound: bool
    """It is as it was made: a plain bridge, IPv4 only, without traffic between its containers."""

    @property
    def table(self) -> str:
        return table_prefix(self.installation_id) + self.bridge.removeprefix(BRIDGE_PREFIX)


class Networks:
    """The isolated networks of one installation on one engine."""

    def __init__(self, engine: Engine, installation_id: str, firewall: Firewall, closed: Sequence[str] = ()) -> None:
        """`closed`: `host:port` of what no agent may reach, whatever its policy opens."""
        self._engine = engine
        self._installation_id = installation_id
        self._firewall = firewall
        self._closed = tuple(closed)
        self._making = asyncio.Lock()
        self._guarded: dict[str, tuple[str, Openings]] = {}
        """Table to bridge, and what this worker was told for it last."""

    async def attach(self, spec: SpawnSpec, urls: str, network: str | None = None) -> Attachment:
        """A network for this spawn with its rules installed and read back. `network`: it has to be that one.

        Raises PermanentSpawnError where this worker can never isolate, TransientSpawnError where the next attempt may,
        EngineUnreachable and EngineRefused.
        """
        policy = Policy.of(spec, urls)
        try:
            async with self._making:
                found, host_address = await self._network(policy, network)
            gateways, openings = await self._close(found, policy, host_address)
        except RulesMissing as e:
            raise _spawn_error(e) from None
        hosts = {HOST_NAME: host_address}
        if not policy.deny_all:
            return Attachment(found.name, found.table, hosts, tuple(map(str, openings.nameservers)))
        # No DNS there (nothing answers on its own loopback), so the gateways' names have to be known without.
        named = {host: str(at[0]) for (host, _), at in gateways.items() if at and not is_address(host)}
        return Attachment(found.name, found.table, named | hosts, ("127.0.0.1",))

    async def put_right(self, network: Network, listed: Sequence[Mapping[str, Any]]) -> None:
        """Make sure of the rules of a network whose agents run already. `listed`: all networks of the engine.

        Raises RulesMissing, SpawnError.
        """
        try:
            policy = Policy.from_label(network.policy)
        except (ValueError, KeyError, TypeError):
            raise RulesMissing(f"the label {POLICY} of network {network.name} cannot be read") from None
        await self._close(network, policy, _host_address(network, listed))

    async def _close(
        self, network: Network, policy: Policy, host_address: str
    ) -> tuple[dict[tuple[str, int], list[IPv4Address]], Openings]:
        """The rules of this network stand when this returns. Answers the gateways' addresses and what is open."""
        self._look_at(network)
        gateways = {host: await _resolved(host, host_address) for host in map(split_endpoint, policy.gateways)}
        openings = await self._openings(policy, gateways)
        await asyncio.to_thread(self._install, network.table, network.bridge, openings)
        self._guarded[network.table] = network.bridge, openings
        return gateways, openings

    def _install(self, table: str, bridge: str, openings: Openings) -> None:
        """Rules of what all workers were told. Blocking.

        Each records first, and looks again when its rules stand: whoever loads last has seen all that was recorded.
        """
        self._firewall.record(table, openings)
        everyone = self._firewall.with_all_answers(table, openings)
        for _ in range(_INSTALL_ATTEMPTS):
            self._firewall.ensure(rule_set(table, bridge, everyone))
            loaded, everyone = everyone, self._firewall.with_all_answers(table, openings)
            if everyone == loaded:
                return
        raise RulesMissing(f"other workers change what {table} opens faster than it can be loaded: see their DNS")

    def put_back(self) -> None:
        """What was installed from here and is gone since. That needs neither the engine nor a name server to answer.

        Blocking. Raises RulesMissing.
        """
        for table, (bridge, openings) in list(self._guarded.items()):
            if has_bridge(table):
                self._install(table, bridge, openings)
            else:
                self._guarded.pop(table, None)

    def verify(self, attachment: Attachment) -> None:
        """The last look before a start, in the thread that starts: the rules are still what they were.

        Raises TransientSpawnError or PermanentSpawnError.
        """
        try:
            self._firewall.verify(attachment.table)
        except RulesMissing as e:
            raise _spawn_error(e) from None

    # ── the engine's side ───────────────────────────────────────────────────────────────────────────────────────

    async def _network(self, policy: Policy, name: str | None) -> tuple[Network, str]:
        """The policy's network, made where there is none, and the address of the engine's machine on its bridge."""
        listed = await self.listed()
        ours = [n for n in self.ours(listed) if n.key == policy.key and (name is None or n.name == name)]
        if not ours and name is None:
            await asyncio.to_thread(self._firewall.check)
            made = await self._make(policy)
            listed = await self.listed()
            ours = [n for n in self.ours(listed) if n.name == made]
            if not ours:
                await self._engine.call("remove a network", lambda c: c.remove_network(made))
                raise FirewallUnusable(
                    f"the engine at {self._engine.address} does not show the network that it made as it was asked for, "
                    "as Podman does not: run agents on a Docker engine, or say `networkIsolation: false`"
                )
        if not ours:
            raise RulesMissing(
                "the container of an earlier attempt is not on an isolated network of this policy; it is made anew"
            )
        found = min(ours, key=lambda n: (n.created, n.name))
        return found, _host_address(found, listed)

    async def listed(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = await self._engine.call("list its networks", lambda c: c.networks())
        return listed

    def ours(self, listed: Iterable[Mapping[str, Any]]) -> list[Network]:
        """Those of this installation. One that somebody altered is `sound` no more."""
        return [n for n in map(_read, listed) if n is not None and n.installation_id == self._installation_id]

    async def _make(self, policy: Policy) -> str:
        token = secrets.token_hex(6)
        name, bridge = f"hatchway-{self._installation_id}-{token}", BRIDGE_PREFIX + token
        await self._engine.call(
            "make an isolated network",
            lambda c: c.create_network(
                name,
                driver="bridge",
                options={BRIDGE_NAME: bridge, BRIDGE_ICC: "false"},
                labels={INSTALLATION: self._installation_id, KEY: policy.key, POLICY: policy.label},
                enable_ipv6=False,
            ),
        )
        log.info("isolated_network_made", network=name, bridge=bridge, policy=policy.label)
        return name

    def _look_at(self, network: Network) -> None:
        """Whether the firewall of this worker is the one that this bridge's packets pass. Raises RulesMissing."""
        if not network.sound:
            raise RulesMissing(
                f"the network {network.name} is not as it was made (a bridge without IPv6 and without traffic between "
                "containers): remove it with `docker network rm`, and the next attempt makes another one"
            )
        try:
            socket.if_nametoindex(network.bridge)
        except OSError:
            raise FirewallUnusable(
                f"the bridge {network.bridge} of the engine at {self._engine.address} is not in this worker's network "
                "namespace, so its rules cannot be installed from here: run the worker on the engine's machine (in a "
                "container: with the host's network), or say `networkIsolation: false`"
            ) from None
        for family in _NETFILTER:
            if not bridged_packets_are_filtered(network.bridge, family):
                raise FirewallUnusable(
                    "this kernel does not show the firewall what agents of one bridge send to each other: load "
                    f"br_netfilter and set net.bridge.bridge-nf-call-{family}=1 on the engine's machine"
                )

    # ── what is open ────────────────────────────────────────────────────────────────────────────────────────────

    async def _openings(self, policy: Policy, gateways: Mapping[tuple[str, int], Sequence[IPv4Address]]) -> Openings:
        opened = [Endpoint(address, port) for (_, port), at in gateways.items() for address in at]
        closed = [
            Endpoint(address, port)
            for host, port in map(split_endpoint, self._closed)
            for address in await _addresses(host, port, socket.AF_UNSPEC)
        ]
        allow = None if policy.allow is None else [parse_opening(text) for text in policy.allow]
        return Openings(
            gateways=opened,
            nameservers=() if policy.deny_all else _nameservers(),
            host_ports=policy.host_ports,
            allow=() if policy.deny_all else allow,
            closed=[endpoint for endpoint in closed if not endpoint.address.is_loopback],
        )


def has_bridge(table: str) -> bool:
    """Whether the bridge is there whose packets this table judges: both end in the same token."""
    try:
        socket.if_nametoindex(BRIDGE_PREFIX + table.rpartition("_")[2])
    except OSError:
        return False
    return True


def table_prefix(installation_id: str) -> str:
    """What the names of this installation's tables begin with; the end is that of the bridge's name."""
    return f"hatchway_{hashlib.sha256(installation_id.encode()).hexdigest()[:8]}_"


def _read(network: Mapping[str, Any]) -> Network | None:
    """None for one that is no isolated network of anybody."""
    labels, options = network.get("Labels") or {}, network.get("Options") or {}
    bridge = str(options.get(BRIDGE_NAME) or "")
    if KEY not in labels or not bridge.startswith(BRIDGE_PREFIX):
        return None
    return Network(
        name=str(network["Name"]),
        installation_id=str(labels.get(INSTALLATION)),
        bridge=bridge,
        key=str(labels[KEY]),
        policy=str(labels.get(POLICY)),
        created=str(network.get("Created")),
        gateway=_gateway(network),
        sound=network.get("Driver") == "bridge"
        and not network.get("EnableIPv6")
        and options.get(BRIDGE_ICC) == "false",
    )


def _host_address(network: Network, listed: Iterable[Mapping[str, Any]]) -> str:
    """What `host.docker.internal` means: the engine's machine on the default bridge, else on this network.

    One address for all networks, and one that stands before them: a gateway can listen there.
    """
    default = next((other for other in listed if other.get("Name") == "bridge"), None)
    address = (_gateway(default) if default else None) or network.gateway
    if address is None:
        raise RulesMissing(f"the engine has no address of its own on network {network.name}: see `docker network ls`")
    return address


def _gateway(network: Mapping[str, Any]) -> str | None:
    """The engine's machine's own address on this network."""
    for entry in (network.get("IPAM") or {}).get("Config") or ():
        given = str(entry.get("Gateway") or "").partition("/")[0]
        if is_address(given):
            return given
        # An engine that was never told an address takes the first one, and does not always say so.
        if entry.get("Subnet") and (subnet := ip_network(entry["Subnet"])).version == 4:
            return str(next(subnet.hosts()))
    return None


def bridged_packets_are_filtered(bridge: str, family: str, root: Path = Path("/")) -> bool:
    """For all bridges, or for this one; switched on for this one where that is possible."""
    own = root / f"sys/class/net/{bridge}/bridge/nf_call_{family}"
    try:
        if (root / f"proc/sys/net/bridge/bridge-nf-call-{family}").read_text().strip() == "1":
            return True
        if own.read_text().strip() != "1":
            own.write_text("1")
    except OSError as e:
        log.warning("bridge_filter_unknown", bridge=bridge, family=family, error=str(e))
        return False
    return True


async def _resolved(gateway: tuple[str, int], host_address: str) -> list[IPv4Address]:
    """A gateway's addresses as agents reach it; none for a loopback address beside others. Raises SpawnError."""
    host, port = gateway
    if host == HOST_NAME:
        return [IPv4Address(host_address)]
    found = await _addresses(host, port)
    reached = [address for address in found if not address.is_loopback]
    if not reached and not is_address(host):
        raise PermanentSpawnError(
            SpawnCode.INVALID_SPEC,
            f"{host} means a loopback address on this worker's machine, so the gateway's rule would open nothing: "
            "write the gateway's address into orchestratorUrl, or correct /etc/hosts there",
        )
    return reached


async def _addresses(host: str, port: int, family: int = socket.AF_INET) -> list[IPv4Address]:
    """The IPv4 addresses of a name on this worker's machine, sorted. `family` AF_UNSPEC: there may be none of these.

    Raises TransientSpawnError.
    """
    try:
        async with asyncio.timeout(RESOLVE_TIMEOUT):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError) as e:
        raise TransientSpawnError(
            SpawnCode.DAEMON_UNAVAILABLE,
            f"the isolated network's rules need the address of {host}, and this worker cannot resolve it "
            f"({e or 'no answer'}): correct the name or this machine's DNS",
        ) from None
    return sorted({IPv4Address(entry[4][0]) for entry in found if entry[0] == socket.AF_INET})


def _nameservers() -> tuple[IPv4Address, ...]:
    for path in RESOLV_CONF:
        try:
            found = nameservers(path.read_text("utf-8", "replace"))
        except FileNotFoundError:
            continue
        if found:
            return found
    return ()  # only resolvers on loopback: those the engine asks itself, from outside the agent's network


def _spawn_error(e: RulesMissing) -> SpawnError:
    kind = PermanentSpawnError if isinstance(e, FirewallUnusable) else TransientSpawnError
    return kind(SpawnCode.DAEMON_UNAVAILABLE, f"nothing was started, because its network is not isolated: {e}")
