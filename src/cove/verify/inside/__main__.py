"""Run every attempt that is made from inside."""

from cove.verify.inside import calls, network, policy, privilege, processes, resources, root, view  # noqa: F401  # they enter their probes
from cove.verify.inside.harness import main

main()
