"""What the numbers of Xid errors mean, and what to do: the meaning and the step that NVIDIA's catalogue gives for data
centre GPUs from Ampere on, in our own words."""

from __future__ import annotations

from typing import Any, NamedTuple


class Xid(NamedTuple):
    """`resolution` is one of the keys of `ACTIONS`."""

    meaning: str
    resolution: str
    note: str = ""

    @property
    def action(self) -> str:
        """What to do, as a sentence or two."""
        return f"{ACTIONS[self.resolution]} {self.note}".strip()

    def data(self) -> dict[str, Any]:
        """For an event."""
        return {"meaning": self.meaning, "action": self.action, "resolution": self.resolution}


ACTIONS = {
    "ignore": "nothing now.",
    "restart_training": "restart the training.",
    "follow_other_xid": "look at the other Xid of the same time; alone, restart the fabric manager.",
    "reset_gpu": "take the node out and reset the GPU.",
    "reboot_node": "take the node out and reboot it.",
    "check_nvlink": "take the node out and check its NVLink and NVSwitch connections.",
    "check_ecc": "take the node out and reset the GPU, unless an Xid 94 came with it.",
    "check_power": "check the GPU's power cables and seating.",
    "update_software": "update the driver and the firmware.",
    "recovery_action": "do what the recovery action of this GPU says.",
    "contact_support": "take the node out and ask its vendor's support.",
}

_SUPPORT = "When it comes again, ask the vendor's support."
_CODE = "Usually a bug of the program: run it with CUDA_LAUNCH_BLOCKING=1, then under compute-sanitizer."
_NVLINK5 = "The unit that raised it and its status word, in the kernel's log, say how serious it is."

CATALOGUE = {
    8: Xid("the GPU stopped processing", "restart_training", _SUPPORT),
    11: Xid("a command stream was invalid or corrupted", "restart_training", _CODE),
    13: Xid("graphics engine exception: a kernel did something illegal", "restart_training", _CODE),
    25: Xid("a command stream was illegal", "restart_training", _CODE),
    31: Xid("MMU fault: a kernel used an address that is not mapped", "restart_training", _CODE),
    32: Xid("a command stream was invalid or corrupted on its way to the GPU", "restart_training", _CODE),
    37: Xid("driver firmware error", "ignore", _CODE),
    38: Xid("driver firmware watchdog", "ignore", _SUPPORT),
    39: Xid("copy engine exception", "restart_training", _SUPPORT),
    40: Xid("copy engine exception", "restart_training", _SUPPORT),
    41: Xid("copy engine exception", "restart_training", _SUPPORT),
    43: Xid("a program's work on the GPU was stopped after its own fault", "ignore", _SUPPORT),
    44: Xid("fault during a context switch", "ignore", _SUPPORT),
    45: Xid("a program's work was removed from the GPU because of an earlier error", "follow_other_xid"),
    46: Xid("the GPU stopped processing and did not react", "reset_gpu", _SUPPORT),
    48: Xid("double-bit ECC error: memory could not be corrected", "check_ecc", "Xid 171 or 172 says which memory."),
    54: Xid("the GPU's auxiliary power is not connected", "check_power", _SUPPORT),
    60: Xid("video processor exception", "restart_training"),
    62: Xid("an internal microcontroller halted", "reset_gpu", _SUPPORT),
    63: Xid("a bad row or page of memory was marked for replacement", "ignore", "A reset of the GPU activates it."),
    64: Xid("a bad row or page of memory could not be replaced", "reset_gpu", _SUPPORT),
    66: Xid("illegal access by the driver", "ignore"),
    67: Xid("illegal access by the driver", "ignore", _SUPPORT),
    68: Xid("video decoder exception", "restart_training", _SUPPORT),
    69: Xid("graphics engine class error", "restart_training", _CODE),
    74: Xid("NVLink error", "check_nvlink", _SUPPORT),
    78: Xid("a virtual GPU could not start", "update_software"),
    79: Xid(
        "the GPU has fallen off the bus", "reboot_node", "Then ask the vendor's support: power, seating or the card."
    ),
    80: Xid("corrupted data was sent to the GPU", "restart_training", _CODE),
    92: Xid("many corrected single-bit ECC errors", "ignore", _SUPPORT),
    93: Xid("the card's configuration memory is worn", "ignore", _SUPPORT),
    94: Xid("uncorrectable memory error, contained in one program", "restart_training", "Others on the GPU may go on."),
    95: Xid("uncorrectable memory error, not contained", "reset_gpu", "What was computed since may be wrong."),
    109: Xid("a context switch timed out", "reset_gpu", _SUPPORT),
    110: Xid("security fault", "reset_gpu"),
    119: Xid("the GPU's system processor (GSP) did not answer the driver in time", "reset_gpu", _SUPPORT),
    120: Xid("error of the GPU's system processor (GSP)", "reset_gpu", _SUPPORT),
    121: Xid("error on the link between chips (C2C)", "ignore", _SUPPORT),
    136: Xid("an NVLink could not be trained", "reset_gpu", "Then check the link's signal."),
    137: Xid(
        "NVLink privilege error: a remote access was refused", "ignore", "Look for a fault on the GPU at the other end."
    ),
    140: Xid("an uncorrectable ECC error escaped containment", "reset_gpu", _SUPPORT),
    141: Xid("CUDA fast path error", "ignore", _SUPPORT),
    143: Xid("the GPU could not be initialised", "reset_gpu", _SUPPORT),
    144: Xid("NVLink 5 error (SAW)", "check_nvlink", _NVLINK5),
    145: Xid("NVLink 5 error (RLW)", "check_nvlink", _NVLINK5),
    146: Xid("NVLink 5 error (TLW)", "check_nvlink", _NVLINK5),
    147: Xid("NVLink 5 error (TREX)", "check_nvlink", _NVLINK5),
    148: Xid("NVLink 5 error (NVLPW)", "check_nvlink", _NVLINK5),
    149: Xid("NVLink 5 error (NETIR)", "check_nvlink", _NVLINK5),
    150: Xid("NVLink 5 error (MSE)", "check_nvlink", _NVLINK5),
    154: Xid("the GPU's recovery action has changed", "recovery_action", "It follows another Xid."),
    155: Xid("NVLink error declared by software", "reset_gpu"),
    156: Xid("a faulty part of the GPU was marked to be left out", "reset_gpu", "The reset activates it."),
    157: Xid("a faulty part of the GPU could not be left out", "ignore", _SUPPORT),
    158: Xid("fatal timeout inside the GPU", "reset_gpu", _SUPPORT),
    160: Xid("a channel of memory was marked for repair", "ignore"),
    161: Xid("a channel of memory could not be marked for repair", "ignore", _SUPPORT),
    167: Xid("fatal PCIe timeout", "contact_support"),
    168: Xid("the GPU runs with less memory, after errors in a protected region", "contact_support"),
    171: Xid("details of an Xid 48: the error was in DRAM", "follow_other_xid"),
    172: Xid("details of an Xid 48: the error was in SRAM", "follow_other_xid"),
}

_ENGINES = {
    **dict.fromkeys((70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "copy engine exception"),
    **dict.fromkeys((82, *range(99, 106)), "JPEG engine exception"),
    **dict.fromkeys((83, 84, 88, 89, 96, 97, 98), "video decoder exception"),
    **dict.fromkeys((86, 139), "optical flow engine exception"),
}

UNKNOWN = 999
"""NVML's own number for an Xid that it does not know."""


def xid(number: int) -> Xid:
    """What is known of Xid `number`; one that is not in the catalogue says so."""
    if number in _ENGINES:
        return Xid(_ENGINES[number], "restart_training", _SUPPORT)
    if number == UNKNOWN:
        return Xid("an error that NVML has no number for", "contact_support", "The kernel's log has it.")
    return CATALOGUE.get(number) or Xid("not in the catalogue of this version", "contact_support")
