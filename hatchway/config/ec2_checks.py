"""What a scaler of the type `ec2` needs, and what would only fail once an instance is there."""

from __future__ import annotations

from collections.abc import Iterator

from hatchway.backends.ec2_user_data import FOR_THE_ENVIRONMENT, LIMIT, PLACEHOLDERS, least_size, unknown_placeholders
from hatchway.config.document import Path_
from hatchway.config.ec2_schema import Ec2LabelSet, Ec2Scaler, Offer
from hatchway.config.schema import LabelSet, Scaler
from hatchway.model import EnvSecret
from hatchway.urls import endpoint_problems

RESERVED_TAGS = ("aws:", "kici-", "hatchway.")

Problem = tuple[Path_, str]


def check_ec2(scaler: Scaler) -> Iterator[Problem]:
    """Paths are relative to the scaler."""
    if scaler.ec2 is None:
        yield ("ec2",), "is required: say the `region` that the instances run in"
    else:
        yield from _check_endpoint(scaler.ec2)
    if scaler.platform is None:
        yield ("platform",), "is required: it is the image's, as in linux/arm64, and no worker's"
    elif not scaler.platform.startswith("linux/"):
        yield ("platform",), "must be linux/<arch>: what an instance runs is a shell script"
    if scaler.hosts:
        yield ("hosts",), "means nothing here: every worker with AWS credentials serves this scaler"
    for index, label_set in enumerate(scaler.label_sets):
        for path, message in _check_label_set(scaler, label_set):
            yield ("labelSets", index, *path), message


def _check_endpoint(ec2: Ec2Scaler) -> Iterator[Problem]:
    if ec2.endpoint_url is not None:
        for problem in endpoint_problems(ec2.endpoint_url, "claim codes"):
            yield ("ec2", "endpointUrl"), problem


def _check_label_set(scaler: Scaler, label_set: LabelSet) -> Iterator[Problem]:
    for name, value in label_set.env.items():
        if isinstance(value, EnvSecret):
            yield (
                ("env", name),
                "cannot be a secret: user data can be read by whoever may describe the instance; give the instance a "
                "profile and let the job fetch it",
            )
    ec2 = label_set.ec2
    if ec2 is None:
        yield ("ec2",), "is required: `ami`, `offers`, `subnets` and `securityGroups` of the instances"
        return
    for path, message in (
        *_check_offers(ec2.offers), *_check_user_data(ec2), *_check_tags(ec2),
        *_check_lifetime(scaler, label_set, ec2),
    ):  # fmt: skip
        yield ("ec2", *path), message
    if ec2.root_volume.kms_key_id is not None and not ec2.root_volume.encrypted:
        yield ("ec2", "rootVolume", "kmsKeyId"), "means nothing with `encrypted: false`: remove one of the two"
    if len(set(ec2.subnets)) != len(ec2.subnets):
        yield ("ec2", "subnets"), "names one subnet twice"


def _check_offers(offers: list[Offer]) -> Iterator[Problem]:
    for index, offer in enumerate(offers):
        if offer.max_price is not None and not offer.spot:
            yield ("offers", index, "maxPrice"), "belongs to a spot offer: say `spot: true`, or leave it out"
        if offer in offers[:index]:
            yield ("offers", index), "is there already: it would be asked for twice"


def _check_user_data(ec2: Ec2LabelSet) -> Iterator[Problem]:
    path: Path_ = ("userData",)
    first = ec2.user_data.lstrip().split("\n", 1)[0]
    if first.startswith(("#!", "#cloud-config", "#include", "#part-handler", "#cloud-boothook")):
        yield path, "is run by /bin/sh: leave out the first line that says otherwise"
    if "\0" in ec2.user_data:
        yield path, "holds a NUL byte, which no script can carry"
    if unknown := unknown_placeholders(ec2.user_data):
        known = ", ".join(PLACEHOLDERS)
        yield path, f"has unknown placeholders ({len(unknown)}); known between double braces: {known}"
        return
    size = least_size(ec2.user_data)
    if size > LIMIT - FOR_THE_ENVIRONMENT:
        yield (
            path,
            f"makes {size} bytes before any environment, and EC2 takes {LIMIT}: keep {FOR_THE_ENVIRONMENT} of them "
            "free, or put the rest of the script into the image",
        )


def _check_tags(ec2: Ec2LabelSet) -> Iterator[Problem]:
    for key in ec2.tags:
        if key.lower().startswith(RESERVED_TAGS):
            yield ("tags", key), "is reserved: instances are found again by tags of these names"


def _check_lifetime(scaler: Scaler, label_set: LabelSet, ec2: Ec2LabelSet) -> Iterator[Problem]:
    if ec2.max_instance_seconds is None:
        return
    path: Path_ = ("maxInstanceSeconds",)
    if scaler.warm_label_set is label_set:
        yield (
            path,
            "counts from the boot, and a warm agent may idle for as long as it likes before its job: it would be ended "
            "at work; leave it out here, or give the warm pool a label set of its own",
        )
    if scaler.max_lifetime_seconds is None:
        return
    needed = scaler.adoption_timeout_seconds + scaler.max_lifetime_seconds
    if ec2.max_instance_seconds < needed:
        yield (
            path,
            f"is less than adoptionTimeoutSeconds and maxLifetimeSeconds together ({needed}): the instance would end "
            "under a job that may still run",
        )
