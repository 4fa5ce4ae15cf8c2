"""The images of the small EC2, and the volumes that a launch makes of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.support.fake_ec2.wire import Parameters, Refused, grouped

AMI = "ami-0123456789abcdef0"
ARM_AMI = "ami-0123456789abcdef1"
WINDOWS_AMI = "ami-0123456789abcdef2"
DATA_AMI = "ami-0123456789abcdef3"
"""Has two volumes beside its root: one that goes with its instance, and one that stays. And one that is no volume."""


def _ebs(device: str, *, goes_with_it: bool) -> dict[str, Any]:
    ebs = {
        "snapshotId": "snap-0123456789abcdef0", "volumeSize": 8, "volumeType": "gp3",
        "deleteOnTermination": goes_with_it, "encrypted": False,
    }  # fmt: skip
    return {"deviceName": device, "ebs": ebs}


def _image(ami: str, root: str, architecture: str, *more: dict[str, Any], **fields: str) -> dict[str, Any]:
    return {
        "imageId": ami, "rootDeviceName": root, "architecture": architecture, "imageState": "available",
        "blockDeviceMapping": [_ebs(root, goes_with_it=True), *more], **fields,
    }  # fmt: skip


IMAGES = {
    AMI: _image(AMI, "/dev/xvda", "x86_64"),
    ARM_AMI: _image(ARM_AMI, "/dev/sda1", "arm64"),
    WINDOWS_AMI: _image(WINDOWS_AMI, "/dev/sda1", "x86_64", platform="windows"),
    DATA_AMI: _image(
        DATA_AMI,
        "/dev/xvda",
        "x86_64",
        _ebs("/dev/sdf", goes_with_it=True),
        _ebs("/dev/sdg", goes_with_it=False),
        {"deviceName": "/dev/sdb", "virtualName": "ephemeral0"},
    ),
}


@dataclass(frozen=True)
class Volume:
    device: str
    goes_with_it: bool
    encrypted: bool


def volumes_of(ask: Parameters) -> list[Volume]:
    """What the image says, and the launch says otherwise."""
    said = {one["DeviceName"]: one for one in grouped(ask, "BlockDeviceMapping")}
    image = {one["deviceName"]: one["ebs"] for one in IMAGES[ask["ImageId"]]["blockDeviceMapping"] if "ebs" in one}
    if unknown := [device for device in said if device not in image]:
        raise Refused("InvalidBlockDeviceMapping", f"{unknown[0]} has neither a snapshot nor a size")
    return [
        Volume(
            device,
            _flag(said.get(device, {}).get("Ebs.DeleteOnTermination"), ebs["deleteOnTermination"]),
            _flag(said.get(device, {}).get("Ebs.Encrypted"), ebs["encrypted"]),
        )
        for device, ebs in image.items()
    ]


def _flag(said: str | None, otherwise: bool) -> bool:
    return otherwise if said is None else said == "true"
