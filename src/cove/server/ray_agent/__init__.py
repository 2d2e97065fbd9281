"""The agent of a node in a cluster on Ray: `python -m cove.server.ray_agent`, the only process that imports Ray.

A driver of Ray aborts its process when its raylet is gone, and is of no use when the head has lost its memory: so it
is a child of `cove serve`, which starts it again, and nothing else of Cove imports this package. It waits for nobody
on the way of a request: it writes `members.json` and the room of this node into the state directory, and answers on a
unix socket who asks for more room or for a name.

    refresh ── nodes, members, grants, blocks ──► members.json, capacity.json   (`agent`)
    socket  ── grant, claim, find, drain, …   ──► answers                       (`service`)
    engine  ── all that is asked of Ray       ──► `ray_engine`, `ray_kv`

What is true stands in the state directories of the nodes. What Ray has is derived from it, and made again when Ray has
lost it: a node registers itself, asks for blocks for what it runs, and claims the names of its sandboxes.
"""
