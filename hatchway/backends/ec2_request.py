"""What EC2 is asked for: the offers of a label set one by one, each with a token of its own and everything in tags."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from hatchway.backends.base import SpawnSpec
from hatchway.backends.ec2_user_data import LIMIT, Boot, user_data
from hatchway.config.ec2_schema import Ec2LabelSet, Offer
from hatchway.errors import PermanentSpawnError, SpawnCode
from hatchway.secrets.providers import ENV_PREFIX
from hatchway.urls import is_loopback

INSTALLATION = "hatchway.installation"
AGENT_ID = "kici-agent-id"
SCALER = "kici-scaler-name"
CLAIM_CODE = "KICI_SCALER_CLAIM_CODE"
ORCHESTRATOR_URL = "KICI_ORCHESTRATOR_URL"

_SECRET_NAMES = frozenset({"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "DATABASE_URL", "TEMPORAL_API_KEY"})
_SHORTEST_SECRET = 8
"""Characters; a shorter one stands in many an innocent value."""

TAG_LIMIT = 256
"""Characters of a tag's value that EC2 takes."""

BOOT = timedelta(minutes=10)
"""What the instance's own time limit leaves beyond all of ours: it is for when nobody of us is there any more."""

_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64", "i386": "386"}


@dataclass(frozen=True)
class Image:
    """What EC2 says of an AMI."""

    id: str
    root_device: str
    architecture: str
    windows: bool
    volumes: tuple[str, ...] = ()
    """The devices that it makes a volume for, the root's among them."""


@dataclass(frozen=True)
class Placement:
    """One offer in one subnet."""

    offer: Offer
    subnet: str

    def __str__(self) -> str:
        return f"{self.offer.instance_type}{' spot' if self.offer.spot else ''} in {self.subnet}"


def placements(ec2: Ec2LabelSet) -> Iterator[Placement]:
    """Every offer in every subnet before the next offer: the offers stand in the order of their price."""
    return (Placement(offer, subnet) for offer in ec2.offers for subnet in ec2.subnets)


def client_token(installation_id: str, agent_id: str, placement: Placement, number: int = 0) -> str:
    """The idempotency key of one agent's one offer. Nothing of the attempt: a retry finds the first one's instance.

    `number`: how many of them EC2 has refused before, which it may not forget.
    """
    offer = placement.offer.model_dump(mode="json")
    parts = [installation_id, agent_id, offer, placement.subnet, *([number] if number else [])]
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(f"hatchway ec2\0{text}".encode()).hexdigest()


def instance_tags(spec: SpawnSpec, ec2: Ec2LabelSet) -> dict[str, str]:
    """What finds the instance again, and what a person sees of it; the label set's own beside that."""
    tags = {
        "Name": f"hatchway-{spec.agent_id}",
        **ec2.tags,
        "kici-managed": "true",
        SCALER: spec.scaler.name,
        AGENT_ID: spec.agent_id,
        "kici-labels": ",".join(spec.labels),
        INSTALLATION: spec.installation_id,
    }
    if spec.job_id is not None:
        tags["kici-bound-job-id"] = spec.job_id
    if spec.run_id is not None:
        tags["kici-run-id"] = spec.run_id
    return {key: value[:TAG_LIMIT] for key, value in tags.items()}


def secrets_of_worker(environ: Mapping[str, str]) -> frozenset[str]:
    """Values of this worker's environment that are secrets by their names, whoever passes them on."""
    return frozenset(
        value
        for name, value in environ.items()
        if (name.startswith(ENV_PREFIX) or name in _SECRET_NAMES) and len(value) >= _SHORTEST_SECRET
    )


def refuse_what_cannot_run(
    spec: SpawnSpec, installation_id: str, of_worker: frozenset[str] = frozenset()
) -> Ec2LabelSet:  # fmt: skip
    """Find, before anything is asked, what could only fail later. `of_worker`: secrets that the spawn has not handled.

    Raises PermanentSpawnError.
    """
    problem = None
    ec2, scaler = spec.label_set.ec2, spec.scaler.ec2
    secret = sorted(
        name
        for name, value in spec.env.items()
        if name != CLAIM_CODE and _holds_secret(value, spec.secret_values | of_worker)
    )
    if spec.installation_id != installation_id:
        problem = "this spawn is for another installation than this worker's; its instance could never be found again"
    elif ec2 is None or scaler is None:
        problem = "its label set and its scaler need a section `ec2`"
    elif secret:
        problem = (
            f"{', '.join(secret)} would put a secret into user data, which whoever may describe the instance can read: "
            "give the instance a profile and let the job fetch it"
        )
    elif (problem := _outlives(spec, ec2)) is not None:
        pass
    elif scaler.endpoint_url is None and _only_loopback(spec.env.get(ORCHESTRATOR_URL, "")):
        problem = (
            "the gateway's address is a loopback address, which on an instance is the instance itself: set the "
            "scaler's orchestratorUrl to one that its subnets reach"
        )
    if problem is not None or ec2 is None:
        raise PermanentSpawnError(SpawnCode.INVALID_SPEC, problem or "")
    return ec2


def _outlives(spec: SpawnSpec, ec2: Ec2LabelSet) -> str | None:
    """The configuration's own times are held to each other at load; a request may bring longer ones."""
    if ec2.max_instance_seconds is None or spec.max_lifetime is None:
        return None
    needed = int((_adoption_timeout(spec) + spec.max_lifetime).total_seconds())
    if needed <= ec2.max_instance_seconds:
        return None
    return (
        f"the time to be adopted in and the lifetime make {needed} s, and maxInstanceSeconds of its label set ends the "
        f"instance after {ec2.max_instance_seconds}, under a job that may still run: ask for less, or raise it"
    )


def _adoption_timeout(spec: SpawnSpec) -> timedelta:
    return spec.adoption_timeout or timedelta(seconds=spec.scaler.adoption_timeout_seconds)


def _holds_secret(value: str, secrets: frozenset[str]) -> bool:
    return any(secret and secret in value for secret in secrets)


def _only_loopback(urls: str) -> bool:
    hosts = [urlsplit(url.strip()).hostname or "" for url in urls.split(",") if url.strip()]
    return bool(hosts) and all(map(is_loopback, hosts))


def check_image(image: Image, spec: SpawnSpec) -> None:
    """Raises PermanentSpawnError for one that could not run the agent, or runs it as something else than its labels."""
    if image.windows:
        raise PermanentSpawnError(
            SpawnCode.INVALID_SPEC, f"{image.id} is a Windows image, and what an instance runs is a shell script"
        )
    wanted = (spec.scaler.platform or "").partition("/")[2]
    found = _ARCHITECTURES.get(image.architecture, image.architecture)
    if wanted and found != wanted:
        raise PermanentSpawnError(
            SpawnCode.WRONG_ARCHITECTURE,
            f"{image.id} is for {found}, and its scaler says platform {spec.scaler.platform}; correct one of the two",
        )


def lifetime(spec: SpawnSpec, ec2: Ec2LabelSet) -> timedelta | None:
    """When the instance ends itself. None: its lifetime has no bound that is known now, as of a warm agent, which may
    stand idle for as long as it likes, and whose job's lifetime begins with the job."""
    if ec2.max_instance_seconds is not None:
        return timedelta(seconds=ec2.max_instance_seconds)
    if spec.max_lifetime is None or spec.job_id is None:
        return None
    return _adoption_timeout(spec) + spec.max_lifetime + spec.stop_grace + BOOT


def script(spec: SpawnSpec, ec2: Ec2LabelSet, region: str) -> str:
    """The agent's user data. Raises PermanentSpawnError where it is more than EC2 takes."""
    boot = Boot(
        agent_id=spec.agent_id,
        template=ec2.user_data,
        env=spec.env,
        values={
            "agentId": spec.agent_id,
            "claimCode": spec.env.get(CLAIM_CODE, ""),
            "jobId": spec.job_id or "",
            "labels": ",".join(spec.labels),
            "orchestratorUrl": spec.env.get(ORCHESTRATOR_URL, ""),
            "region": region,
            "runId": spec.run_id or "",
            "scaler": spec.scaler.name,
        },
        claim=spec.env.get(CLAIM_CODE, ""),
        lifetime=lifetime(spec, ec2),
    )
    text = user_data(boot)
    size = len(text.encode("utf-8", "surrogateescape"))
    if size > LIMIT:
        raise PermanentSpawnError(
            SpawnCode.INVALID_SPEC,
            f"script and environment make {size} bytes of user data, and EC2 takes {LIMIT}: the job's `env` or the "
            "label set's is too large",
        )
    return text


def run_instances(
    spec: SpawnSpec, ec2: Ec2LabelSet, image: Image, placement: Placement, text: str, number: int = 0
) -> dict[str, Any]:
    """The parameters of RunInstances. `text` is the user data; the SDK encodes it. `number`: of the token."""
    tags = [{"Key": key, "Value": value} for key, value in instance_tags(spec, ec2).items()]
    ask: dict[str, Any] = {
        "ClientToken": client_token(spec.installation_id, spec.agent_id, placement, number),
        "MinCount": 1,
        "MaxCount": 1,
        "ImageId": ec2.ami,
        "InstanceType": placement.offer.instance_type,
        "SubnetId": placement.subnet,
        "SecurityGroupIds": list(ec2.security_groups),
        "UserData": text,
        # What the agent ends, or the time limit, is gone for good: a stopped instance would cost, and start again.
        "InstanceInitiatedShutdownBehavior": "terminate",
        # One hop: a container on the instance does not reach the instance's role.
        "MetadataOptions": {"HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        "BlockDeviceMappings": [
            {"DeviceName": image.root_device, "Ebs": _root(ec2)},
            *({"DeviceName": one, "Ebs": _further(ec2)} for one in image.volumes if one != image.root_device),
        ],
        "TagSpecifications": [{"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")],
    }
    if ec2.instance_profile is not None:
        ask["IamInstanceProfile"] = {"Name": ec2.instance_profile}
    if placement.offer.spot:
        ask["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": _spot(placement.offer)}
    return ask


def _root(ec2: Ec2LabelSet) -> Mapping[str, Any]:
    volume = ec2.root_volume
    root: dict[str, Any] = {"VolumeType": volume.type, "DeleteOnTermination": True, "Encrypted": volume.encrypted}
    if volume.size_gib is not None:
        root["VolumeSize"] = volume.size_gib
    if volume.kms_key_id is not None:
        root["KmsKeyId"] = volume.kms_key_id
    return root


def _further(ec2: Ec2LabelSet) -> Mapping[str, Any]:
    """Of the image's other volumes, which are as large as it says. It may say that one stays when its instance goes."""
    volume: dict[str, Any] = {"DeleteOnTermination": True}
    if ec2.root_volume.encrypted:  # never said the other way round: EC2 refuses that for an encrypted snapshot
        volume["Encrypted"] = True
        if ec2.root_volume.kms_key_id is not None:
            volume["KmsKeyId"] = ec2.root_volume.kms_key_id
    return volume


def _spot(offer: Offer) -> Mapping[str, Any]:
    options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
    return options | ({"MaxPrice": offer.max_price} if offer.max_price is not None else {})
