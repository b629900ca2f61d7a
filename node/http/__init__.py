"""The node's HTTP faces: the one for clients and sinks, and what the operators' one is built from.

Texts become bytes and errors become statuses here, and nowhere else; nothing in this room decides about data.
Only `listeners` knows uvicorn. `app` turns one ASGI call into one handler call, `router` finds the handler,
`statuses` is the table of errors. The story goes on in `repl.coordinator` and in `queues.registry`.
"""
