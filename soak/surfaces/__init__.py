"""What can be done with each part of a sandbox, beside its model."""

from soak.hand import Hand, Surface
from soak.subject import IMAGE
from soak.surfaces.code import CodeContexts
from soak.surfaces.exec import Commands
from soak.surfaces.files import FileTree
from soak.surfaces.image import Images
from soak.surfaces.keeping import Backups, Buckets, Volumes
from soak.surfaces.life import Life
from soak.surfaces.network import Policies
from soak.surfaces.ports import PortServers
from soak.surfaces.process import Processes
from soak.surfaces.session import Sessions
from soak.surfaces.state import States
from soak.surfaces.terminal import Terminals


def all_surfaces(hand: Hand) -> list[Surface]:
    """Every one that its sandbox has, for this hand."""
    files, sessions = FileTree(hand), Sessions(hand)
    where, spec = hand.subject.where, hand.subject.spec
    kept: list[Surface] = [files, States(hand, files, sessions), Life(hand)]
    if not where.is_cluster:
        kept += [Backups(hand, files), Volumes(hand)]  # those of a cluster are on one node
    if spec.image == IMAGE:
        return [*kept, Images(hand, files)]
    if hand.subject.has_policy:
        return [*kept, sessions, Policies(hand)]
    if hand.subject.has_bucket:
        return [*kept, Buckets(hand)]
    return [Commands(hand), Processes(hand), sessions, Terminals(hand), CodeContexts(hand), PortServers(hand), *kept]
