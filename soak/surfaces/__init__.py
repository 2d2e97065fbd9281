"""What can be done with each part of a sandbox, beside its model."""

from soak.hand import Hand, Surface
from soak.surfaces.code import CodeContexts
from soak.surfaces.exec import Commands
from soak.surfaces.files import FileTree
from soak.surfaces.life import Life
from soak.surfaces.ports import PortServers
from soak.surfaces.process import Processes
from soak.surfaces.session import Sessions
from soak.surfaces.terminal import Terminals


def all_surfaces(hand: Hand) -> list[Surface]:
    """Every one, for this hand."""
    kinds = (Commands, Processes, Sessions, Terminals, CodeContexts, FileTree, PortServers, Life)
    return [kind(hand) for kind in kinds]
