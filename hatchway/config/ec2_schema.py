"""The keys of a scaler of the type `ec2`: where its instances run, what they are made of, how long they live."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from hatchway.config.base import ConfigModel, Whole, spelled

Text = Annotated[str, StringConstraints(min_length=1, max_length=255, strip_whitespace=True)]
TagKey = Annotated[str, StringConstraints(min_length=1, max_length=127)]
TagValue = Annotated[str, StringConstraints(max_length=255)]

Ami = Annotated[str, spelled(r"ami-[0-9a-f]{8,17}", "must be the id of an AMI, as in ami-0123456789abcdef0")]
Subnet = Annotated[str, spelled(r"subnet-[0-9a-f]{8,17}", "must be the id of a subnet, as in subnet-0123456789abcdef0")]
SecurityGroup = Annotated[
    str, spelled(r"sg-[0-9a-f]{8,17}", "must be the id of a security group, as in sg-0123456789abcdef0")
]
InstanceType = Annotated[str, spelled(r"[a-z0-9-]+\.[a-z0-9-]+", "must be an instance type, as in m7i.large")]
Region = Annotated[str, spelled(r"[a-z]{2,4}(-[a-z]+)+-[0-9]{1,2}", "must be an AWS region, as in eu-central-1")]
Price = Annotated[
    str, spelled(r"[0-9]{1,4}(\.[0-9]{1,6})?", 'must be US dollars an hour as a text, as in "0.05"; leave it out for '
                 "the on-demand price"),
]  # fmt: skip

DEFAULT_USER_DATA = "exec {{agent}}\n"


class Ec2Scaler(ConfigModel):
    """The account's region that a scaler's instances run in. The credentials are those of the worker's environment."""

    region: Region
    endpoint_url: str | None = None
    """Another EC2 endpoint than the region's own: a VPC endpoint, or a test's."""


class Offer(ConfigModel):
    """One thing to ask EC2 for. The first of a label set's offers that there is capacity for is taken."""

    instance_type: InstanceType
    spot: bool = False
    max_price: Price | None = None
    """US dollars an hour, of a spot offer. Unset: at most the on-demand price."""


class RootVolume(ConfigModel):
    """The disk that an instance boots from; deleted with it."""

    size_gib: Annotated[Whole, Field(ge=1, le=16_384)] | None = None
    """Unset: the image's own size."""
    type: Literal["gp3", "gp2"] = "gp3"
    encrypted: bool = True
    kms_key_id: Text | None = None
    """Unset: the account's default key."""


class Ec2LabelSet(ConfigModel):
    """One kind of instance."""

    ami: Ami
    offers: Annotated[list[Offer], Field(min_length=1, max_length=20)]
    subnets: Annotated[list[Subnet], Field(min_length=1, max_length=16)]
    """Each offer is asked for in each of them, in this order: they lie in different zones, which run out apart."""
    security_groups: Annotated[list[SecurityGroup], Field(min_length=1, max_length=16)]
    instance_profile: Text | None = None
    """Name of the instance profile. Unset: the instance has no role, and a job on it no AWS credentials."""
    user_data: Annotated[str, StringConstraints(min_length=1, max_length=16_384)] = DEFAULT_USER_DATA
    """A script for /bin/sh, with `{{…}}` for what is known of the agent. It is the agent: when it ends, so does the
    instance."""
    root_volume: RootVolume = RootVolume()
    tags: Annotated[dict[TagKey, TagValue], Field(max_length=30)] = {}
    max_instance_seconds: Annotated[Whole, Field(ge=60, le=2_592_000)] | None = None
    """After this the instance ends itself, whoever is still there to say so. Unset: derived from the lifetime."""
