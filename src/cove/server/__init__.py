"""The server: many sandboxes for many clients, over HTTP.

`supervisor` starts workers and the zygote. A `worker` serves the API, by `gateway` and `bridge`, and what sandboxes
show, by `preview`; the zygote becomes one `runtime` process for each sandbox. `sandboxes` is what all of them know of
each other, from disk.
"""
